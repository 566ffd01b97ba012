"""Averages the gradients of a training step over all ranks.

Dense gradients travel in balanced fusion buffers, in the order in which the first step produced them, while others are
still computed (shoal.gradients.native_steps). Sparse ones, and those whose size is not known, follow when all are there.

Each place in the program where gradients are averaged has a name (naming.py) by which ranks meet there. They compare what
they have before anything is averaged, and what breaks off there on one rank fails on all.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, finalize

import tensorflow as tf
from tensorflow.python.eager import record

from shoal.gradients.native_steps import Gradient, NativeSteps
from shoal.job.groups import Group, world
from shoal.job.per_job import PerJob
from shoal.ops import doors
from shoal.ops.arrays import DTYPES
from shoal.tensorflow import naming, traced, xla
from shoal.tensorflow.collectives import allreduce
from shoal.tensorflow.library import operations
from shoal.tensorflow.variables import name_of

# The eager steps that were made last keep their memory, so many of them; those of functions as long as their functions live.
KEEP_MEMORY = 8

_Key = tuple[str, str, str, tuple[Gradient, ...]]


class _Known:
    """The steps of a job, and of each graph those that it uses. None is forgotten: what a rank knows of a place, such as the order
    of its gradients, all ranks must know."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[_Key, NativeSteps] = {}
        self.of_graphs: WeakKeyDictionary[Any, set[NativeSteps]] = WeakKeyDictionary()
        self.eager: OrderedDict[NativeSteps, None] = OrderedDict()


_known: PerJob[_Known] = PerJob(lambda _: _Known())


def average(gradients: Sequence[Any], names: Sequence[str], op: str = "mean", group: Group | None = None) -> list[Any]:
    """Each gradient combined with those of its name on the other ranks. Eager, or in a function.

    Arguments:
        gradients: tensors, ``tf.IndexedSlices``, or None, which stays None; the same ones on every rank.
        names: of each gradient, for messages; the same on every rank.
        op: "mean" or "sum".
        group: the ranks that take part; None: all.

    Raises:
        TypeError, ValueError: as ``shoal.tensorflow.allreduce``.
        tf.errors.FailedPreconditionError: ranks have different gradients; the message says which. This process is in no job, or
            in a later one than that in which the function was traced. Not in a function that was traced in a job of one rank,
            which averages nothing, in whatever job it runs.
        tf.errors.UnknownError: as ``shoal.tensorflow.allreduce``; the step has broken off on another rank.
    """
    if op not in ("mean", "sum"):
        raise ValueError(f"gradients are averaged by op='mean' or 'sum', got {op!r}")
    chosen = world() if group is None else group
    if chosen.size == 1:
        return traced.as_traced("gradients", gradients, chosen)
    graph = naming.current_graph()
    return _average(gradients, names, op, chosen, graph is not None and xla.is_compiled(graph))


def _average(gradients: Sequence[Any], names: Sequence[str], op: str, chosen: Group, compiled: bool) -> list[Any]:
    graph = naming.current_graph()
    place = "eager gradients" if graph is None else naming.name_of_call("gradients", graph)
    described = [_described(gradient, name) for gradient, name in zip(gradients, names, strict=True)]
    steps = _steps_of(place, described, op, chosen, graph)
    together = [index for index, each in enumerate(described) if each.travels]
    apart = [index for index, gradient in enumerate(gradients) if gradient is not None and not described[index].travels]
    results = list(gradients)
    dense, others = [gradients[index] for index in together], {index: gradients[index] for index in apart}
    if compiled:
        from shoal.tensorflow import compiled_gradients

        averaged, averages_apart = compiled_gradients.averaged(steps, dense, others, names, op, chosen)
    else:
        order = naming.order_of(place, doors.number_of(chosen), graph)
        averaged, all_there = _averaged(steps, order, dense, list(others.values()))
        averages_apart = _averaged_apart(steps, others, all_there, op, chosen)
    handed_on = _differentiable(dense, averaged, [names[index] for index in together], op, chosen, compiled)
    for index, result in [*zip(together, handed_on, strict=True), *averages_apart.items()]:
        results[index] = result
    return results


def average_of_sources(
    gradients: Sequence[Any], sources: Sequence[Any], op: str, group: Group | None, sparse_as_dense: bool
) -> list[Any]:
    """``average`` of the gradients with respect to these variables or tensors, which give them their names."""
    dense = [
        tf.convert_to_tensor(each) if sparse_as_dense and isinstance(each, tf.IndexedSlices) else each
        for each in gradients
    ]
    names = [f"gradient {index} ({_name(source)})" for index, source in enumerate(sources)]
    return average(dense, names, op, group)


def _name(source: Any) -> str:
    return naming.without_counters(name_of(source)) if hasattr(source, "assign") else "a tensor"


def _described(gradient: Any, name: str) -> Gradient:
    if gradient is None:
        return Gradient(name, "none", (), 0, travels=False)
    dtype = gradient.dtype.name
    if isinstance(gradient, tf.IndexedSlices):
        return Gradient(name, f"sparse {dtype}", (), 0, travels=False)
    if not gradient.shape.is_fully_defined() or not gradient.dtype.is_floating or dtype not in DTYPES:
        return Gradient(name, f"{dtype} of any shape", (), 0, travels=False)
    return Gradient(name, dtype, tuple(gradient.shape.as_list()), gradient.dtype.size)


def _averaged(
    steps: NativeSteps, order: Any, gradients: Sequence[Any], others: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The averages; and what others wait for: that all ranks have all of theirs. ``order``: of the steps at this place."""
    step = naming.made(
        operations.shoal_gradients_begin(order=order, tensor_name=steps.name, averager=steps.number),
        naming.current_graph(),
    )
    ready = [
        operations.shoal_gradient_ready(x=gradient, step=step, index=index) for index, gradient in enumerate(gradients)
    ]
    shapes = [gradient.shape.as_list() for gradient in gradients]
    eager = tf.executing_eagerly()
    with tf.control_dependencies([] if eager else [*ready, *(part for each in others for part in _parts(each))]):
        averaged = operations.shoal_gradients_finish(
            step=step,
            T=[gradient.dtype for gradient in gradients],
            ranks=[len(shape) for shape in shapes],
            dims=[size for shape in shapes for size in shape],
        )
    if eager:
        return list(averaged or ()), []
    if not gradients:  # then it is an operation without results
        return [], [averaged]
    # Functions are looked at again with what operations say of their shapes; these say nothing.
    shaped = [tf.ensure_shape(result, shape) for result, shape in zip(averaged, shapes, strict=True)]
    return shaped, [averaged[0].op]


def _averaged_apart(
    steps: NativeSteps, gradients: dict[int, Any], all_there: Sequence[Any], op: str, group: Group
) -> dict[int, Any]:
    with tf.control_dependencies(all_there):
        return {
            index: allreduce(_held(gradient), op, f"{steps.name}.{index}", group)
            for index, gradient in gradients.items()
        }


def _differentiable(
    gradients: Sequence[Any], averaged: list[Any], names: Sequence[str], op: str, group: Group, compiled: bool
) -> list[Any]:
    """The averages; where a tape records this, too, their own gradients are averaged in the same way."""
    if not record.should_record_backprop(gradients):
        return averaged

    @tf.custom_gradient
    def handed_on(*_: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        def back(*of_averages: Any) -> list[Any]:
            return _average(list(of_averages), [f"gradient of {name}" for name in names], op, group, compiled)

        return [tf.identity(each) for each in averaged], back

    return list(handed_on(*gradients))


def _parts(gradient: Any) -> list[Any]:
    return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def _held(gradient: Any) -> Any:
    """Such that the operation on it comes after the control dependencies at hand, also where it would use the value as it is."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape)
    return tf.identity(gradient)


def _steps_of(place: str, described: Sequence[Gradient], op: str, group: Group, graph: Any) -> NativeSteps:
    known = _known.of(group.session)
    key = (place, op, group.identity, tuple(described))
    with known.lock:
        steps = known.by_key.get(key)
        if steps is None:
            steps = known.by_key[key] = NativeSteps(place, described, op, group)
        if graph is None:
            known.eager[steps] = None
            known.eager.move_to_end(steps)
            if len(known.eager) > KEEP_MEMORY:
                known.eager.popitem(last=False)[0].let_memory_go()
        if graph is not None and steps not in known.of_graphs.setdefault(graph, set()):
            known.of_graphs[graph].add(steps)
            finalize(graph, steps.let_memory_go).atexit = False
    return steps
