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

    def on_host(*arrays: Any) -> tuple[Any, ...]:
        handles = [
            collectives.allreduce_async(np.asarray(each), op, name, group)
            for each, name in zip(arrays, names, strict=True)
        ]
        # All of them, whatever becomes of one: JAX takes the arrays back when this returns.
        failure = submissions.first_failure(handles)
        if failure is not None:
            raise failure
        return tuple(handle.wait() for handle in handles)

    shapes = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in gradients)
    # Not pure: it is to run once a step on every rank, whatever becomes of the result.
    return list(io_callback(on_host, shapes, *gradients, ordered=False))
