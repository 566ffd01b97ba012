"""``import horovod`` as this door, for scripts that are not to be changed.

After ``install`` every import of ``horovod`` and of what is in it gives the module of the same name here: the same object, so that
whatever either name leads to is equal. What has no counterpart is a ModuleNotFoundError that says so.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

NAME = "horovod"
HERE = "shoal.horovod"

# Of Horovod's folders, those that start jobs.
_STARTERS = ("ray", "runner", "spark")

# Has a module of the name in it.
_FOR_SPAWNED = str(Path(__file__).parent / "spawned")


class _Alias(Loader):
    """Gives a module that is there already, or is imported under its own name."""

    def __init__(self, real_name: str) -> None:
        self._real_name = real_name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real_name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import has put the alias's there.
        module.__spec__ = self._own_spec


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        if first != NAME:
            return None
        real_name = f"{HERE}.{rest}" if rest else HERE
        if not _exists(real_name):
            raise ModuleNotFoundError(_missing(fullname), name=fullname)
        return ModuleSpec(fullname, _Alias(real_name), is_package=True)


def install() -> None:
    """From now on ``horovod`` is this door, also where Horovod itself is installed: in this process and those that
    multiprocessing starts from it.
    """
    for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
        del sys.modules[name]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if _FOR_SPAWNED not in sys.path:
        # Behind the program's own folder.
        sys.path.insert(1, _FOR_SPAWNED)


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it is in is no package
        return False


def _missing(name: str) -> str:
    part = name.split(".")[1]
    if part in _STARTERS:
        return (
            f"{name} starts jobs, which Shoal does otherwise: start the ranks with shoal run, torchrun, mpirun or srun"
        )
    if _exists(f"{HERE}.{part}"):
        return f"{name} has no counterpart in {HERE}: docs/horovod.md tells what is there"
    return f"{name}: Shoal has no door for it yet; shoal.horovod.torch, .tensorflow and .keras are there"
