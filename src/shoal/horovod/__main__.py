"""``python -m shoal.horovod train.py [ARGUMENTS]``: runs a script to which ``import horovod`` is this door.

On several ranks: ``shoal run -n 4 -m shoal.horovod train.py``. ``-m`` before the name runs a module.
"""

import runpy
import sys
from pathlib import Path

from shoal.errors import ConfigurationError
from shoal.horovod import aliases, environment

_USAGE = "usage: python -m shoal.horovod [-m] SCRIPT [ARGUMENTS]: a script that imports horovod, which is Shoal then"


def main() -> None:
    words = sys.argv[1:]
    is_module = words[:1] == ["-m"]
    if is_module:
        words = words[1:]
    if not words or words[0].startswith("-"):
        sys.exit(_USAGE)
    try:
        environment.tell_rank()
    except ConfigurationError as error:
        sys.exit(str(error))
    aliases.install()
    sys.argv = words
    if is_module:
        # As python -m: modules are looked for here.
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
