"""Open MPI and MPICH, through mpi4py, whose one build speaks to either: chosen by environment before it is imported.

MPICH's library has another file name on some systems than its own ABI says; ``mpich_environment`` gives it that name.
"""

import contextlib
import os
import subprocess
from pathlib import Path

from shoal.bench.contestants.base import ArrayBuffer, Buffer, FloatArray

ABI_VARIABLE = "MPI4PY_MPIABI"
_MPICH_ABI_NAME = "libmpi.so.12"
_DEBIAN_NAME = "libmpich.so.12"
_LDCONFIG = "/sbin/ldconfig"
_SEARCH = "LD_LIBRARY_PATH"


class Mpi:
    """The ranks of MPI_COMM_WORLD."""

    def __init__(self, abi: str) -> None:
        """``abi``: ``openmpi`` or ``mpich``. Raises ImportError when mpi4py or that library is not there."""
        os.environ[ABI_VARIABLE] = abi
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.version = _short(MPI.Get_library_version())
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        self._world.Barrier()

    def buffer(self, content: FloatArray) -> Buffer:
        def reduce() -> None:
            self._world.Allreduce(self._mpi.IN_PLACE, content, op=self._mpi.SUM)

        return ArrayBuffer(content, reduce)

    def barrier(self) -> None:
        self._world.Barrier()

    def close(self) -> None:
        self._mpi.Finalize()


def _short(version: str) -> str:
    """``Open MPI v4.1.4``, ``MPICH 4.0.2``: what the library says in many more words."""
    words = version.split("\n")[0].split(",")[0].replace("Version:", "").strip(" \0")
    return " ".join(words.split())


def mpich_environment(folder: Path) -> dict[str, str]:
    """What a process needs so that mpi4py finds MPICH; ``folder`` is an existing one for a link to the library.

    Raises ImportError if there is no MPICH.
    """
    if _library(_MPICH_ABI_NAME) is not None:
        return {}
    path = _library(_DEBIAN_NAME)
    if path is None:
        raise ImportError(f"MPICH's library ({_MPICH_ABI_NAME} or {_DEBIAN_NAME}) is not installed")
    link = folder / _MPICH_ABI_NAME
    if not link.exists():
        link.symlink_to(path)
    return {_SEARCH: os.pathsep.join(filter(None, [str(folder), os.environ.get(_SEARCH)]))}


def _library(name: str) -> Path | None:
    """Where the loader finds a library."""
    for folder in os.environ.get(_SEARCH, "").split(os.pathsep):
        if folder and (Path(folder) / name).exists():
            return Path(folder) / name
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        known = subprocess.run([_LDCONFIG, "-p"], capture_output=True, text=True, check=True, timeout=30).stdout
        for line in known.splitlines():
            if line.split()[:1] == [name]:
                return Path(line.split()[-1])
    return None
