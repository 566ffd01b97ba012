"""On JAX: one call of the host a step, in which all gradients are in flight together.

The compiled step waits for it, and the gradients are copied out of XLA's memory and back.
"""

from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import io_callback

from shoal.job.groups import Group
from shoal.keras.backends import absent
from shoal.ops import collectives, submissions


def average(
    gradients: Sequence[Any], names: Sequence[str], op: str, group: Group | None, sparse_as_dense: bool = False
) -> list[Any]:
    if keras.distribution.distribution() is not None:
        raise NotImplementedError(
            "a DistributedOptimizer averages one gradient a rank: leave out keras.distribution, and start a rank for each device"
        )
    if not gradients:
        return []
    there = [index for index, each in enumerate(gradients) if each is not None]

    def on_host(*arrays: Any) -> tuple[Any, ...]:
        given = dict(zip(there, arrays, strict=True))
        handles = [
            collectives.allreduce_async(np.asarray(given[index]), op, name, group)
            if index in given
            else absent(name, group)
            for index, name in enumerate(names)
        ]
        # All of them, whatever becomes of one: JAX takes the arrays back when this returns.
        failure = submissions.first_failure(handles)
        if failure is not None:
            raise failure
        return tuple(handles[index].wait() for index in there)

    present = [gradients[index] for index in there]
    shapes = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in present)
    averaged = list(gradients)
    # Not pure: it is to run once a step on every rank, whatever becomes of the result.
    for index, result in zip(there, io_callback(on_host, shapes, *present, ordered=False), strict=True):
        averaged[index] = result
    return averaged
