"""``import horovod`` in a process that a program with aliases has started by the method "spawn" or "forkserver".

Such a process takes over ``sys.path``, on which aliases.py has put this folder, but no import hooks. Once this module is
imported, they are there, and ``horovod`` is the door.
"""

import sys

import shoal.horovod
from shoal.horovod import aliases

aliases.install()
sys.modules[__name__] = shoal.horovod
