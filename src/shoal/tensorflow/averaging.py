"""Averages the gradients of a training step over all ranks."""

from collections.abc import Sequence
from typing import Any

from shoal.job.groups import Group
from shoal.tensorflow.collectives import allreduce


def average(gradients: Sequence[Any], names: Sequence[str], op: str = "mean", group: Group | None = None) -> list[Any]:
    """Each gradient combined with those of its name on the other ranks. Eager, or in a function.

    Arguments:
        gradients: tensors, ``tf.IndexedSlices``, or None, which stays None; the same ones on every rank.
        names: unique, in the same job, of each gradient.
        op: "mean" or "sum".
        group: the ranks that take part; None: all.
    """
    return [
        None if gradient is None else allreduce(gradient, op, name, group)
        for gradient, name in zip(gradients, names, strict=True)
    ]
