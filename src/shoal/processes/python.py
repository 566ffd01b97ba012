"""How a module of Shoal is run as a program of its own."""

import os
import sys
from collections.abc import Mapping

_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
)


def module_command(name: str) -> list[str]:
    """As ``python -m``, which would take modules from the current folder first: a user's random.py there is not for us.

    Python has an option for that (-P) from 3.11 on.
    """
    return [sys.executable, "-c", _RUN.format(name)]


def needed_by_python(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment Python needs to begin, in any folder."""
    needed = {name: environment[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in environment}
    if paths := environment.get("PYTHONPATH"):
        # Of its entries, an empty one is the current folder.
        needed["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths.split(os.pathsep)))
    return needed
