"""Open MPI and MPICH, through mpi4py, whose one build speaks to either: chosen by environment before it is imported.

An MPI waits by polling, which is right for ranks that have a processor each. Where many ranks share few processors (in a
lab, on loopback) a rank that polls holds up the rank that it waits for, by whole time slices of the kernel. So there this
program does the waiting: it starts the operation, and sleeps a moment between two polls. docs/benchmarks.md has
the figures. MPICH's library has another file name on some systems than its own ABI says; ``mpich_environment`` gives it
that name.
"""

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.bench.contestants.base import ArrayBuffer, Buffer, FloatArray

ABI_VARIABLE = "MPI4PY_MPIABI"
# The nonblocking all-reduce's algorithm in MPICH; one that is set stands for large buffers alone.
MPICH_ALGORITHM = "MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM"
# Smaller buffers are latency: they are left to the library's own choice of algorithm.
LARGE_BYTES = 128 * 1024
_PAUSE = 10e-6
_MPICH_ABI_NAME = "libmpi.so.12"
_DEBIAN_NAME = "libmpich.so.12"
_LDCONFIG = "/sbin/ldconfig"
_SEARCH = "LD_LIBRARY_PATH"


class Mpi:
    """The ranks of MPI_COMM_WORLD."""

    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, abi: str, *, sharing: bool = False) -> None:
        """``abi``: ``openmpi`` or ``mpich``. ``sharing``: whether there are more ranks than processors.

        Raises ImportError when mpi4py or that library is not there.
        """
        os.environ[ABI_VARIABLE] = abi
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world = MPI.COMM_WORLD
        self._abi = abi
        self._sharing = sharing
        self._algorithm = _ControlVariable(MPICH_ALGORITHM) if sharing and abi == "mpich" else None
        self.version = _short(MPI.Get_library_version())
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        self._world.Barrier()

    def buffer(self, content: FloatArray) -> Buffer:
        large = content.nbytes >= LARGE_BYTES
        arguments = (self._mpi.IN_PLACE, content, self._mpi.SUM)
        # Open MPI's blocking operation gives way between two questions, if told so, and has the lower latency.
        if not self._sharing or (self._abi == "openmpi" and not large):
            return ArrayBuffer(content, lambda: self._world.Allreduce(*arguments))
        if self._algorithm is not None:
            self._algorithm.write(self._algorithm.initial if large else 0)
        return ArrayBuffer(content, lambda: _wait(self._world.Iallreduce(*arguments)))

    def barrier(self) -> None:
        if self._sharing:
            _wait(self._world.Ibarrier())
        else:
            self._world.Barrier()

    def close(self) -> None:
        self._mpi.Finalize()


def _wait(request: Any) -> None:
    """Until it is done, leaving the processor to others in between."""
    while not request.Test():
        time.sleep(_PAUSE)


class _ControlVariable:
    """A whole number of MPICH's settings, through MPI's tools interface: as it was set at the start, and as it should be.

    Does nothing where the library does not have it.
    """

    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL(_MPICH_ABI_NAME)
        self._handle = ctypes.c_void_p()
        self.initial = 0
        level, index, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._there = (
            self._call("MPI_T_init_thread", 0, ctypes.byref(level))
            and self._call("MPI_T_cvar_get_index", name.encode(), ctypes.byref(index))
            and self._call("MPI_T_cvar_handle_alloc", index, None, ctypes.byref(self._handle), ctypes.byref(count))
            and count.value == 1
        )
        if self._there:
            value = ctypes.c_int()
            self._call("MPI_T_cvar_read", self._handle, ctypes.byref(value))
            self.initial = value.value

    def write(self, value: int) -> None:
        if self._there:
            self._call("MPI_T_cvar_write", self._handle, ctypes.byref(ctypes.c_int(value)))

    def _call(self, function: str, *arguments: Any) -> bool:
        call: Callable[..., int] = getattr(self._library, function)
        return call(*arguments) == 0


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
