"""Optimizers of TensorFlow 1 whose gradients are averaged over all ranks. Those of Keras: ``shoal.keras``."""

from typing import Any

import tensorflow as tf

from shoal.job.groups import Group
from shoal.tensorflow.averaging import average_of_sources


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """Computes as the optimizer that it is made of, and averages what that has computed."""

    def __init__(self, optimizer: Any, op: str, group: Group | None, sparse_as_dense: bool) -> None:
        super().__init__(use_locking=False, name=f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer
        self._op = op
        self._group = group
        self._sparse_as_dense = sparse_as_dense

    def compute_gradients(self, *arguments: Any, **options: Any) -> Any:
        """As the optimizer's own, averaged over the ranks."""
        pairs = self._optimizer.compute_gradients(*arguments, **options)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        averaged = average_of_sources(gradients, variables, self._op, self._group, self._sparse_as_dense)
        return list(zip(averaged, variables, strict=True))

    def apply_gradients(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.apply_gradients(*arguments, **options)

    def get_slot(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.get_slot(*arguments, **options)

    def get_slot_names(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.get_slot_names(*arguments, **options)

    def variables(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.variables(*arguments, **options)


def DistributedOptimizer(
    optimizer: Any, op: str = "mean", group: Group | None = None, sparse_as_dense: bool = False
) -> Any:
    """An optimizer that averages gradients over the ranks before it applies them.

    Arguments:
        optimizer: of ``tf.compat.v1.train``. Those of Keras go to ``shoal.keras.DistributedOptimizer``.
        op, group, sparse_as_dense: as for ``DistributedGradientTape``.

    Raises TypeError for another optimizer.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is no optimizer of tf.compat.v1.train: for one of Keras take shoal.keras.DistributedOptimizer, "
            "or shoal.tensorflow.DistributedGradientTape in a training loop of your own"
        )
    return _DistributedOptimizer(optimizer, op, group, sparse_as_dense)
