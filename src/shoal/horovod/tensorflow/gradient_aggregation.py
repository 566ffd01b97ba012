"""Gradients of several backward passes, added up on this rank before they travel: ``backward_passes_per_step``."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.tensorflow.calls import after
from shoal.horovod.tensorflow.gradients import LocalVariables


class LocalGradientAggregationHelper:
    """Counts the passes of one optimizer, and adds up their gradients. Eager, in functions, and in graphs of version 1.

    Every ``backward_passes_per_step`` passes the sums are combined over the ranks, and applied. All ranks make the same passes.

    Arguments:
        backward_passes_per_step: at least 1; else a ValueError.
        allreduce_func: gradients and their variables → combined gradients.
        sparse_as_dense: whether IndexedSlices are taken, as tensors.
        average_aggregated_gradients: whether the sum is divided by the number of passes.
        rank, optimizer_type: taken, and mean nothing.
        process_set, scale_local_gradients: of local variables, as for a tape.
        name: begins the names of its variables, in graphs of version 1.
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int = 0,
        optimizer_type: str = _OPTIMIZER_TYPE_LEGACY,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError(f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}")
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.counter: Any = None
        self.locally_aggregated_grads: dict[int, Any] = {}
        self._combine = allreduce_func
        self._local = LocalVariables(process_set, scale_local_gradients)
        self._name = name or "aggregation"

    def register_local_var(self, var: Any) -> None:
        """From now on the gradient of ``var`` is this rank's own."""
        self._local.register(var)

    def register_local_layer(self, layer: Any) -> None:
        """From now on the gradients of the layer's weights are this rank's own, also of those that it does not have yet."""
        self._local.register_layer(layer)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds up one pass. In the last of a step the combined sums of all, in the others ``grads``.

        The same gradients are None in all passes. Raises ValueError for IndexedSlices without ``sparse_as_dense``.
        """
        given = [self._dense(grad) for grad in grads]
        places = [place for place, grad in enumerate(given) if grad is not None]
        present = [given[place] for place in places]
        variables = [vars[place] for place in places]
        self._make_sums(places, present, variables)
        sums = [self.locally_aggregated_grads[place] for place in places]
        added = [each.assign_add(grad, read_value=False) for each, grad in zip(sums, present, strict=True)]
        with after(added):
            counted = self.counter.assign_add(1, read_value=False)
        with after([counted]):
            results = tf.cond(
                tf.equal(self.counter.read_value(), self.backward_passes_per_step),
                lambda: self._combined(sums, variables),
                lambda: [tf.identity(grad) for grad in present],
            )
        of_place = dict(zip(places, results if isinstance(results, list | tuple) else [results], strict=True))
        return [of_place.get(place) for place in range(len(given))]

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """After the last pass of a step calls ``apply_grads_closure``; after others counts on.

        ``args[0]`` are the pairs that ``compute_gradients`` led to. What counts steps goes on with each pass: the optimizer's
        ``iterations``, and ``global_step`` of ``kwargs``. In a graph of version 1 returns the operation.
        """
        gradients = [grad for grad, _ in args[0] if grad is not None]
        global_step = kwargs.get("global_step")
        iterations = getattr(optimizer, "iterations", None)

        def count_on() -> Any:
            counted = [each.assign_add(1) for each in (iterations, global_step) if each is not None]
            with after(counted):
                return tf.constant(False)

        def apply() -> Any:
            applied = apply_grads_closure()
            with after([] if applied is None else [applied]):
                return tf.constant(True)

        with after(gradients):
            return tf.cond(tf.equal(self.counter.read_value(), 0), apply, count_on)

    def _combined(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        totals = [each.read_value() for each in sums]
        results = self._local.combine(totals, variables, self._combine_everyones(variables))
        # What was read and has travelled may be forgotten.
        with after(results):
            begun = [each.assign(tf.zeros_like(each), read_value=False) for each in sums]
            begun.append(self.counter.assign(0, read_value=False))
        divisor = self.backward_passes_per_step if self.average_aggregated_gradients else 1
        with after(begun):
            return [tf.identity(result) if divisor == 1 else result / divisor for result in results]

    def _combine_everyones(self, variables: list[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        everyones = [variables[place] for place in self._local.everyones(variables)]
        return lambda gradients: list(self._combine(list(gradients), everyones))

    def _dense(self, grad: Any) -> Any:
        if not isinstance(grad, tf.IndexedSlices):
            return None if grad is None else tf.convert_to_tensor(grad)
        if not self.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not added up over several backward passes: pass sparse_as_dense=True, or "
                "backward_passes_per_step=1"
            )
        return tf.convert_to_tensor(grad)

    def _make_sums(self, places: list[int], grads: list[Any], variables: list[Any]) -> None:
        if self.counter is None:
            self.counter = _variable([], tf.int32, f"{self._name}_passes")
        for place, grad, variable in zip(places, grads, variables, strict=True):
            if place not in self.locally_aggregated_grads:
                shape = grad.shape if grad.shape.is_fully_defined() else variable.shape
                self.locally_aggregated_grads[place] = _variable(shape, grad.dtype, f"{self._name}_sum_{place}")


def _variable(shape: Any, dtype: Any, name: str) -> Any:
    """Made once, also where a function is being traced. In a graph of version 1 it is a local one, as Horovod has it."""
    with tf.init_scope():
        collections = None if tf.executing_eagerly() else [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
        return tf.compat.v1.Variable(
            tf.zeros(shape, dtype), trainable=False, collections=collections, use_resource=True, name=name
        )
