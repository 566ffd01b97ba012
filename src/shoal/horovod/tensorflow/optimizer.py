"""``hvd.DistributedOptimizer``: an optimizer whose gradients are those of all ranks.

Of Keras, or of version 1 of TensorFlow (``tf.compat.v1.train.Optimizer``), whose wrapper is here.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.tensorflow.adasum_optimizer import AdasumOptimizer
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.gradients import HowCombined, checked
from shoal.horovod.tensorflow.keras_optimizer import wrap_keras_optimizer
from shoal.horovod.tensorflow.step_gradients import StepGradients
from shoal.horovod.tensorflow.version_1 import Wrapper


class _DistributedOptimizer(Wrapper):
    """An optimizer of version 1 that combines the gradients of all ranks where they are computed."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, gradients: StepGradients) -> None:
        super().__init__(optimizer, name, use_locking)
        self._gradients = gradients
        self._agg_helper = gradients.aggregation

    def register_local_var(self, var: Any) -> None:
        """From now on the gradient of ``var`` is this rank's own: divided by the number of ranks, or as it is."""
        self._gradients.register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of combined gradient and variable. Arguments are those of the wrapped optimizer."""
        gradients, variables = zip(*self._optimizer.compute_gradients(*args, **kwargs), strict=True)
        return list(zip(self._gradients.combined(gradients, variables), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Any:
        """That of the wrapped optimizer; with several passes a step, in the last of them."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self._optimizer, pairs, global_step=global_step, name=name)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer as ``optimizer``, which applies the gradients of all ranks.

    One of version 1 is wrapped; one of Keras is the same object, of a class with its name.

    Arguments:
        optimizer: of version 1, or of Keras on TensorFlow.
        name, use_locking: of the wrapper of version 1.
        device_dense, device_sparse: taken, and mean nothing: gradients go through memory of the host.
        compression: how gradients travel, one of ``Compression``.
        sparse_as_dense: makes tensors of IndexedSlices before they travel.
        backward_passes_per_step: the gradients of so many passes are added up before they travel and are applied.
        op: how they are combined. Adasum combines what the optimizer has changed, and is for version 1.
        gradient_predivide_factor: of an average: gradients are divided by it before they are added up, the sum by the rest.
        average_aggregated_gradients: whether the sum of several passes is divided by their number.
        num_groups, groups: taken and checked; all gradients travel together.
        process_set: the ranks that take part. On others gradients are their own.
        scale_local_gradients: whether gradients of variables given to ``register_local_var`` are divided by the number of ranks.

    Raises:
        ValueError: arguments that contradict each other; Adasum with an optimizer of Keras'.
        TypeError: ``optimizer`` is none of them.
        NotImplementedError: Adasum in a process set, or of a number of ranks that is no power of two.
    """
    how = HowCombined(compression, sparse_as_dense, op, gradient_predivide_factor, process_set)
    how = checked(how, num_groups, groups)
    if how.op is ReduceOp.Adasum and average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients is not for op=hvd.Adasum: leave it out")
    is_of_version_1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    if how.op is ReduceOp.Adasum and is_of_version_1:
        if process_set.process_set_id != 0:
            raise NotImplementedError(
                "Adasum of an optimizer is for all ranks: leave out process_set, or use op=hvd.Average"
            )
        return AdasumOptimizer(optimizer, name, use_locking, compression, backward_passes_per_step)
    if is_of_version_1 and backward_passes_per_step > 1 and tf.executing_eagerly():
        raise ValueError(
            "backward_passes_per_step with an optimizer of version 1 is for graphs: use one of Keras, or tf.compat.v1.Graph()"
        )
    label = f"Distributed{type(optimizer).__name__}" if name is None else name
    gradients = StepGradients(how, backward_passes_per_step, average_aggregated_gradients, scale_local_gradients, label)
    if is_of_version_1:
        return _DistributedOptimizer(optimizer, label, use_locking, gradients)
    return wrap_keras_optimizer(optimizer, gradients)
