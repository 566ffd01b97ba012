"""Gradient tapes whose gradients are averaged over all ranks."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from shoal.job.groups import Group
from shoal.tensorflow import traced
from shoal.tensorflow.averaging import average_of_sources


class DistributedGradientTape:
    """A ``tf.GradientTape`` whose ``gradient`` gives what it gives averaged over the ranks. It stands in for the tape in everything else.

    with tf.GradientTape() as tape:
        loss = ...
    tape = stf.DistributedGradientTape(tape)  # import shoal.tensorflow as stf
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    Arguments:
        tape: a tape, which may be recording, or be entered by ``with`` on this object.
        op: "mean" or "sum".
        group: the ranks that take part; None: all.
        sparse_as_dense: sparse gradients (``tf.IndexedSlices``) become dense before they are averaged, which is less to send where
            most rows have one.
    """

    def __init__(self, tape: Any, op: str = "mean", group: Group | None = None, sparse_as_dense: bool = False) -> None:
        if op not in ("mean", "sum"):
            raise ValueError(f"op must be 'mean' or 'sum', got {op!r}")
        self._tape = tape
        self._op = op
        self._group = group
        self._sparse_as_dense = sparse_as_dense

    def __enter__(self) -> "DistributedGradientTape":
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name == "_tape":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """As ``tf.GradientTape.gradient``, averaged.

        Every rank asks for the same sources. Raises what the tape raises, and as ``shoal.tensorflow.averaging.average``.
        """
        gradients = self._tape.gradient(target, sources, *arguments, **options)
        return self._averaged(gradients, sources)

    def _averaged(self, gradients: Any, sources: Any) -> Any:
        # None is one of the gradients here, and IndexedSlices too.
        flat_sources = tf.nest.flatten(sources)
        flat = [gradients] if len(flat_sources) == 1 and not tf.nest.is_nested(sources) else tf.nest.flatten(gradients)
        results = self._average(flat, flat_sources)
        return tf.nest.pack_sequence_as(sources, results)

    def _average(self, gradients: list[Any], sources: list[Any]) -> list[Any]:
        return average_of_sources(gradients, sources, self._op, self._group, self._sparse_as_dense)


class PartialDistributedGradientTape(DistributedGradientTape):
    """As ``DistributedGradientTape``, but the gradients of some layers stay what they are on this rank.

    Arguments:
        local_layers: layers or variables whose gradients are not averaged. Layers may get their variables later.
        scale_local_gradients: those are divided by the number of ranks where the others are averaged, as though the other ranks had
            none. So a rank's own layers learn as fast as they would in one process with all batches.
        tape, op, group, sparse_as_dense: as for ``DistributedGradientTape``.
    """

    def __init__(
        self,
        tape: Any,
        local_layers: Iterable[Any] = (),
        op: str = "mean",
        group: Group | None = None,
        sparse_as_dense: bool = False,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(tape, op, group, sparse_as_dense)
        self._scale = scale_local_gradients
        self._local = list(local_layers)

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable stays what it is on this rank."""
        self._local.append(source)

    def _average(self, gradients: list[Any], sources: list[Any]) -> list[Any]:
        # Only now: a layer has no variables before it is called, which may be while the tape records.
        local = {id(each) for given in self._local for each in _variables_of(given)}
        own = {index for index, source in enumerate(sources) if id(source) in local}
        results = super()._average([None if index in own else each for index, each in enumerate(gradients)], sources)
        divided = {index for index in own if self._scale and self._op == "mean" and gradients[index] is not None}
        members = traced.divisor_of_gradients(self._group) if divided else 1
        for index in own:
            results[index] = _divided(gradients[index], members) if index in divided else gradients[index]
        return results


def _variables_of(given: Any) -> list[Any]:
    variables = getattr(given, "trainable_variables", None)
    return [given] if variables is None else list(variables)


def _divided(gradient: Any, by: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(gradient.values, by), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(by, gradient.dtype)
