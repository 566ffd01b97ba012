"""Open MPI and MPICH, through mpi4py, whose one build speaks to either: the environment says which library it loads.

An MPI waits by polling, which is right for ranks that have a processor each. Where many ranks share few processors (in a
lab, on loopback) a rank that polls holds up the rank that it waits for, by whole time slices of the kernel. So there this
program does the waiting: it starts the operation, and sleeps a moment between two polls. docs/benchmarks.md has
the figures.
"""

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any

from shoal.bench.contestants.base import ArrayBuffer, Buffer, FloatArray
from shoal.bench.mpi_wheels import LIBRARY_VARIABLE, find_wheel, library_is_named

# The nonblocking all-reduce's algorithm, by library; one that is set stands for large buffers alone.
ALGORITHM = {
    "openmpi": "coll_libnbc_iallreduce_algorithm",
    "mpich": "MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM",
}
# Smaller buffers are latency: they are left to the library's own choice of algorithm.
LARGE_BYTES = 128 * 1024
# How Open MPI's messages travel, as its launcher tells the ranks: "ob1" is its own TCP, "ucx" is UCX's.
OPENMPI_PML = "OMPI_MCA_pml"
_PAUSE = 10e-6
# Its own choice, in both.
_AUTOMATIC = 0
_SONAMES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}


class Mpi:
    """The ranks of MPI_COMM_WORLD."""

    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, abi: str, *, sharing: bool = False) -> None:
        """``abi``: ``openmpi`` or ``mpich``. ``sharing``: whether there are more ranks than processors.

        It is the wheel's library, unless mpi4py's own variables name another one. Raises ImportError when mpi4py or that
        library is not there.
        """
        if not library_is_named():
            os.environ[LIBRARY_VARIABLE] = str(find_wheel(abi).library)
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world = MPI.COMM_WORLD
        self._algorithm = _ControlVariable(_SONAMES[abi], ALGORITHM[abi]) if sharing else None
        library = _short(MPI.Get_library_version())
        self.version = f"{library}{_below(abi)}, mpi4py {metadata.version('mpi4py')}"
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        self._world.Barrier()

    def buffer(self, content: FloatArray) -> Buffer:
        arguments = (self._mpi.IN_PLACE, content, self._mpi.SUM)
        if self._algorithm is None:
            return ArrayBuffer(content, lambda: self._world.Allreduce(*arguments))
        self._algorithm.write(self._algorithm.initial if content.nbytes >= LARGE_BYTES else _AUTOMATIC)
        return ArrayBuffer(content, lambda: _wait(self._world.Iallreduce(*arguments)))

    def barrier(self) -> None:
        if self._algorithm is None:
            self._world.Barrier()
        else:
            _wait(self._world.Ibarrier())

    def close(self) -> None:
        self._mpi.Finalize()


def _wait(request: Any) -> None:
    """Until it is done, leaving the processor to others in between."""
    while not request.Test():
        time.sleep(_PAUSE)


class _ControlVariable:
    """A whole number of a library's settings, through MPI's tools interface: as it was set at the start, and as it should be.

    Does nothing where the library does not have it.
    """

    def __init__(self, soname: str, name: str) -> None:
        self._library = _loaded(soname)
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


def _below(abi: str) -> str:
    """``, UCX 1.20.1``, ``, libfabric 2.4``: what carries its messages, if that is another library; "" if it is its own TCP."""
    try:
        if abi == "mpich":
            version: int = _loaded("libfabric.so.1").fi_version()
            return f", libfabric {version >> 16}.{version & 0xFFFF}"
        if os.environ.get(OPENMPI_PML) == "ucx":
            text = _loaded("libucp.so.0").ucp_get_version_string
            text.restype = ctypes.c_char_p
            return f", UCX {text().decode()}"
    except OSError:  # an MPI that was built without it
        pass
    return ""


def _loaded(soname: str) -> ctypes.CDLL:
    """A library of this process. Raises OSError for one that it has not."""
    return ctypes.CDLL(soname, os.RTLD_NOLOAD | os.RTLD_NOW)


def _short(version: str) -> str:
    """``Open MPI v5.0.11``, ``MPICH 5.0.2``: what the library says in many more words."""
    words = version.split("\n")[0].split(",")[0].replace("Version:", "").strip(" \0")
    return " ".join(words.split())
