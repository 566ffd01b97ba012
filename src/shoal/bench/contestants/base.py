"""What a contestant is to the benchmark, inside one of its processes."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

FloatArray = NDArray[numpy.float32]


class Buffer(Protocol):
    """Memory that one contestant reduces, as it likes it best; made before anything is timed."""

    def allreduce(self) -> None:
        """Sums it over all ranks, in place; returns when the result is there."""

    def fetch(self) -> FloatArray:
        """What is in it now, on the CPU."""


class Contestant(Protocol):
    """One library, joined to the other ranks when it is made. ``limits``: sizes in bytes that hold, by name, if it has any."""

    version: str
    limits: Mapping[str, int]
    rank: int
    size: int

    def buffer(self, content: FloatArray) -> Buffer:
        """A buffer with this content; it may use the array itself."""

    def barrier(self) -> None: ...
    def close(self) -> None: ...


class ArrayBuffer:
    """A buffer that is a NumPy array, and a function that reduces it."""

    def __init__(self, array: FloatArray, reduce: Any) -> None:
        self._array = array
        self._reduce = reduce

    def allreduce(self) -> None:
        self._reduce()

    def fetch(self) -> FloatArray:
        return self._array
