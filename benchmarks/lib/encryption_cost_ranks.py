"""What each rank of encryption_cost.py does."""

import resource
import time
from typing import NamedTuple

import numpy

import shoal

BYTES = 64 * 1024**2
ROUNDS = 9


class Side(NamedTuple):
    """``seconds`` of each round; processor seconds of this rank in all of them together."""

    seconds: list[float]
    processor: float


def flow() -> Side:
    """On both ranks. The first round, in which the connection is made, does not count."""
    shoal.init()
    sends = shoal.rank() == 0
    array = numpy.zeros(BYTES if sends else 0, numpy.uint8)
    splits = [0, len(array)]
    seconds: list[float] = []
    before = 0.0
    for number in range(ROUNDS + 1):
        shoal.barrier()
        began = time.perf_counter()
        shoal.alltoall(array, splits)
        shoal.barrier()
        if number == 0:
            before = _processor()
        else:
            seconds.append(time.perf_counter() - began)
    used = _processor() - before
    shoal.shutdown()
    return Side(seconds, used)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
