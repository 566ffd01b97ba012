"""A step's gradients averaged in what XLA compiles (xla.py): one call has all dense ones, and gives all their averages.

Those that do not travel in fusion buffers follow it, each with a call of its own, when the ranks have found that they have the
same. Of sparse ones every rank has as many slices.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.gradients.native_steps import NativeSteps
from shoal.job.groups import Group
from shoal.ops import doors
from shoal.ops.operations import OPERATORS
from shoal.tensorflow import naming, xla
from shoal.tensorflow.compiled import Call, allgather, allreduce


def averaged(
    steps: NativeSteps, together: Sequence[Any], apart: dict[int, Any], names: Sequence[str], op: str, group: Group
) -> tuple[list[Any], dict[int, Any]]:
    """The averages of both kinds.

    Arguments:
        together: dense gradients, those of ``steps`` that travel.
        apart: the others, by their place among all.
        names: of all, for messages.
        op, group: as for ``steps``.

    Raises:
        NotImplementedError: this cannot be compiled.
    """
    xla.require("gradients")
    turns = xla.Turns(steps.place, doors.number_of(group), naming.current_graph())
    averages, order = xla.call(
        "shoal.average",
        together,
        [xla.array_of(gradient, "a gradient") for gradient in together],
        {"kind": "gradients", "name": steps.name, "averager": steps.number},
        in_place=range(len(together)),
        after=turns.before(),
    )
    calls: list[Call] = []

    def call(kind: str, name: str) -> Call:
        made = Call(kind, name, doors.number_of(group), after=order)
        calls.append(made)
        return made

    results = {}
    for index, gradient in apart.items():
        name = f"{steps.name}.{index}"
        if isinstance(gradient, tf.IndexedSlices):
            for part in (gradient.values, gradient.indices):
                xla.array_of(part, f"{names[index]}, IndexedSlices,")
            values = allgather(call("allgather", f"{name}.values"), gradient.values)
            indices = allgather(call("allgather", f"{name}.indices"), gradient.indices)
            if op == "mean":
                # Which the call has compared with the job's.
                values = values / tf.cast(group.size, values.dtype)
            results[index] = tf.IndexedSlices(values, indices, gradient.dense_shape)
        else:
            xla.array_of(gradient, names[index])
            results[index] = allreduce(call("allreduce", name), gradient, OPERATORS[op])
    turns.after([order, *(made.order for made in calls)])
    return averages, results
