"""Averages the gradients of a training step over all ranks.

Dense gradients travel in balanced fusion buffers, in the order in which the first step produced them, while others are
still computed (shoal.gradients.native_steps). Sparse ones, and those whose size is not known, travel each by itself.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import tensorflow as tf

from shoal.gradients.layout import Item
from shoal.gradients.native_steps import NativeSteps
from shoal.job.groups import Group, world
from shoal.job.per_job import PerJob
from shoal.tensorflow.collectives import allreduce, refuse_xla
from shoal.tensorflow.library import operations


class _Key(NamedTuple):
    """Which gradients are averaged by the same ``NativeSteps``: the traces of one function, and its eager calls."""

    group: str
    op: str
    gradients: tuple[tuple[str, str, int], ...]


_steps: PerJob[dict[_Key, NativeSteps]] = PerJob(lambda _: {})


def average(gradients: Sequence[Any], names: Sequence[str], op: str = "mean", group: Group | None = None) -> list[Any]:
    """Each gradient combined with those of its name on the other ranks. Eager, or in a function.

    Arguments:
        gradients: tensors, ``tf.IndexedSlices``, or None, which stays None; the same ones on every rank.
        names: unique, in the same job, of each gradient.
        op: "mean" or "sum".
        group: the ranks that take part; None: all.

    Raises:
        TypeError, ValueError: as ``shoal.tensorflow.allreduce``.
        tf.errors.FailedPreconditionError: ranks have different gradients; the message says which.
        tf.errors.AbortedError, tf.errors.UnknownError: as ``shoal.tensorflow.allreduce``.
    """
    chosen = world() if group is None else group
    results = list(gradients)
    if chosen.size == 1:
        return results
    together = [index for index, gradient in enumerate(gradients) if _is_dense(gradient)]
    for index, gradient in enumerate(gradients):
        if gradient is not None and index not in together:
            results[index] = allreduce(gradient, op, names[index], group)
    averaged = _average_dense(
        [gradients[index] for index in together], [names[index] for index in together], op, chosen
    )
    for index, gradient in zip(together, averaged, strict=True):
        results[index] = gradient
    return results


def _is_dense(gradient: Any) -> bool:
    return (
        gradient is not None
        and not isinstance(gradient, tf.IndexedSlices)
        and gradient.shape.is_fully_defined()
        and gradient.dtype.is_floating
    )


def _average_dense(gradients: Sequence[Any], names: Sequence[str], op: str, group: Group) -> list[Any]:
    if not gradients:
        return []
    if op not in ("mean", "sum"):
        raise ValueError(f"gradients are averaged by op='mean' or 'sum', got {op!r}")
    if not tf.executing_eagerly():
        refuse_xla("gradients", tf.compat.v1.get_default_graph())
    shapes = [gradient.shape.as_list() for gradient in gradients]
    steps = _steps_of(gradients, shapes, names, op, group)
    step = operations.shoal_gradients_begin(averager=steps.number)
    ready = [
        operations.shoal_gradient_ready(x=gradient, step=step, index=index) for index, gradient in enumerate(gradients)
    ]
    with tf.control_dependencies([] if tf.executing_eagerly() else ready):
        averaged = operations.shoal_gradients_finish(
            step=step,
            T=[gradient.dtype for gradient in gradients],
            ranks=[len(shape) for shape in shapes],
            dims=[size for shape in shapes for size in shape],
        )
    if not tf.executing_eagerly():
        for result, shape in zip(averaged, shapes, strict=True):
            result.set_shape(shape)
    return list(averaged)


def _steps_of(
    gradients: Sequence[Any], shapes: Sequence[list[int]], names: Sequence[str], op: str, group: Group
) -> NativeSteps:
    items = [
        Item(name, prod(shape), gradient.dtype.size)
        for name, shape, gradient in zip(names, shapes, gradients, strict=True)
    ]
    dtypes = [gradient.dtype.name for gradient in gradients]
    known = _steps.of(group.session)
    key = _Key(
        group.identity, op, tuple((item.name, dtype, item.elements) for item, dtype in zip(items, dtypes, strict=True))
    )
    if key not in known:
        known[key] = NativeSteps(items, dtypes, op, group)
    return known[key]
