"""The gradients of a step, combined over the ranks: what tapes and optimizers share.

They go to ``shoal.tensorflow``'s averaging together, which says how they travel; so ``groups`` changes nothing, and is only
checked.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from shoal.horovod.common.operators import SHOALS_NAMES, ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.common.util import known_operator
from shoal.horovod.tensorflow.allreduce import grouped_allreduce
from shoal.horovod.tensorflow.calls import group_of
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.scaling import scaled
from shoal.tensorflow import naming, traced
from shoal.tensorflow.averaging import average

# Gradients of variables → combined ones. A gradient may be None.
Combine = Callable[[Sequence[Any]], list[Any]]


class HowCombined(NamedTuple):
    """The arguments of tapes and optimizers that say how gradients are combined. ``checked`` says which make sense."""

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: int = ReduceOp.Average
    gradient_predivide_factor: float = 1.0
    process_set: ProcessSet = global_process_set


def checked(how: HowCombined, num_groups: int = 0, groups: Any = None) -> HowCombined:
    """``how``, with the operator as a ReduceOp. Raises ValueError for arguments that contradict each other."""
    op = known_operator(how.op)
    if how.gradient_predivide_factor != 1.0 and op is not ReduceOp.Average:
        raise ValueError(f"gradient_predivide_factor is for op=hvd.Average, and op is hvd.{op.name}: leave it out")
    if num_groups != 0:
        warnings.warn("the argument num_groups is deprecated: say groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is not None and not isinstance(groups, list) and not (isinstance(groups, int) and groups > 0):
        raise ValueError(f"groups is a number of groups, or a list of lists of variables, got {groups!r}")
    return how._replace(op=op)


class Combiner:
    """Combines the gradients of one tape or optimizer. ``name``: begins the names of its operations."""

    def __init__(self, name: str, how: HowCombined) -> None:
        self._name = name
        self._how = how

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks for each of these. What is None stays None, on all ranks.

        As they are, if the process set has this rank alone, or has it not. Raises as ``hvd.allreduce``.
        """
        how = self._how
        given = [self._dense(gradient) if how.sparse_as_dense else gradient for gradient in gradients]
        # Before init it says so.
        group = how.process_set.group
        if group.size == 1 or not how.process_set.included():
            return traced.as_traced("gradients", given, group)
        if how.op not in (ReduceOp.Average, ReduceOp.Sum):
            return self._combined_each(given)
        factor = how.gradient_predivide_factor
        travelling, contexts = [], []
        for gradient in given:
            smaller, context = self._compressed(gradient)
            travelling.append(smaller if factor == 1.0 else _times(smaller, 1.0 / factor))
            contexts.append(context)
        op = "mean" if how.op is ReduceOp.Average else SHOALS_NAMES[ReduceOp.Sum]
        combined = average(travelling, self._names(len(given)), op, group_of(how.process_set))
        return [
            self._restored(gradient if factor == 1.0 else _times(gradient, factor), context)
            for gradient, context in zip(combined, contexts, strict=True)
        ]

    def _combined_each(self, gradients: list[Any]) -> list[Any]:
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        how = self._how
        # As an average, which compares what ranks have: else one that lacks a gradient would go on, or combine it with another.
        given = [None if gradient is None else tf.zeros([1]) for gradient in gradients]
        compared = average(given, self._names(len(given)), "sum", group_of(how.process_set))
        with tf.control_dependencies([compared[place] for place in places]):
            combined = grouped_allreduce(
                [gradients[place] for place in places],
                compression=how.compression,
                op=how.op,
                process_set=how.process_set,
                name=self._prefix(),
            )
        results: list[Any] = [None] * len(gradients)
        for place, gradient in zip(places, combined, strict=True):
            results[place] = gradient
        return results

    def _names(self, count: int) -> list[str]:
        prefix = self._prefix()
        return [f"{prefix}.{index}" for index in range(count)]

    def _prefix(self) -> str:
        # An eager step has ended before the next begins.
        return (
            self._name if tf.executing_eagerly() else naming.name_of_call(self._name, tf.compat.v1.get_default_graph())
        )

    def _dense(self, gradient: Any) -> Any:
        return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient

    def _compressed(self, gradient: Any) -> tuple[Any, Any]:
        if gradient is None or isinstance(gradient, tf.IndexedSlices):
            return gradient, None
        smaller, context = self._how.compression.compress(tf.convert_to_tensor(gradient))
        return smaller, (context,)

    def _restored(self, gradient: Any, context: Any) -> Any:
        return gradient if context is None else self._how.compression.decompress(gradient, context[0])


class LocalVariables:
    """Variables that are this rank's alone: their gradients are not combined, but divided by the number of ranks.

    So a loss that is summed over the ranks gives them the step that the others get. ``scales``: whether they are divided.
    """

    def __init__(self, process_set: ProcessSet, scales: bool) -> None:
        self._process_set = process_set
        self._scales = scales
        self._variables: dict[int, Any] = {}
        self._layers: list[Any] = []

    def register(self, variable: Any) -> None:
        """From now on this variable is local."""
        self._variables[id(variable)] = variable

    def register_layer(self, layer: Any) -> None:
        """From now on the layer's trainable weights are local, also those that it does not have yet."""
        self._layers.append(layer)

    def has(self, variable: Any) -> bool:
        """Whether it was registered, by itself or with its layer."""
        return not self.everyones([variable])

    def everyones(self, variables: Sequence[Any]) -> list[int]:
        """The places of those that are not local."""
        # Only now: a layer has no weights before it is called, which may be while a tape records.
        local = {*self._variables, *(id(weight) for layer in self._layers for weight in layer.trainable_weights)}
        return [place for place, variable in enumerate(variables) if id(variable) not in local]

    def combine(self, gradients: Sequence[Any], variables: Sequence[Any], combine: Combine) -> list[Any]:
        """The gradients of the variables: those of local ones divided, the others combined."""
        everyones = self.everyones(variables)
        others = set(everyones)
        factor = self._factor() if len(others) < len(variables) else 1.0
        results = [
            None if place in others or gradient is None else _times(gradient, factor)
            for place, gradient in enumerate(gradients)
        ]
        combined = combine([gradients[place] for place in everyones])
        for place, gradient in zip(everyones, combined, strict=True):
            results[place] = gradient
        return results

    def _factor(self) -> Any:
        if not self._scales or not self._process_set.size():
            return 1.0
        members = traced.divisor_of_gradients(self._process_set.group)
        return 1.0 / (members if isinstance(members, int) else tf.cast(members, tf.float64))


def layers_of(local_layers: Any) -> list[Any]:
    """A layer or several, or None, as a list. Raises ValueError for what is no layer of Keras'."""
    layers = [] if local_layers is None else local_layers
    layers = [layers] if isinstance(layers, tf.keras.layers.Layer) else list(layers)
    strangers = [layer for layer in layers if not isinstance(layer, tf.keras.layers.Layer)]
    if strangers:
        raise ValueError(f"local_layers are layers of Keras', and {strangers[0]!r} is a {type(strangers[0]).__name__}")
    return layers


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return None if gradient is None else scaled(tf.convert_to_tensor(gradient), factor)
