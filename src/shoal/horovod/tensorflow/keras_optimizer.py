"""An optimizer of Keras' that applies the gradients of all ranks, where Keras runs on TensorFlow.

The optimizer stays the same object, with its state. Its class becomes one that is derived from it and has its name and
module: so what is saved with it loads without Shoal.
"""

from typing import Any

import tensorflow as tf

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from shoal.horovod.tensorflow.gradients import Combiner, HowCombined, LocalVariables


class _Distributed:
    """What the derived class has beside its own."""

    _shoal_combiner: Combiner
    _shoal_local: LocalVariables
    _shoal_aggregation: LocalGradientAggregationHelper | None

    def register_local_var(self, var: Any) -> None:
        """From now on the gradient of ``var`` is this rank's own: divided by the number of ranks, or as it is."""
        if self._shoal_aggregation is not None:
            self._shoal_aggregation.register_local_var(var)
        self._shoal_local.register(var)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As Keras' own, with the gradients of all ranks. Raises as ``hvd.allreduce``."""
        gradients = list(grads)
        given = self._trainable_variables if trainable_variables is None else trainable_variables  # type: ignore[attr-defined]
        variables = list(given)
        aggregation = self._shoal_aggregation
        if aggregation is None:
            combined = self._shoal_local.combine(gradients, variables, self._shoal_combiner)
            super().apply(combined, trainable_variables)  # type: ignore[misc]
            return
        if not self.built:  # type: ignore[has-type]
            # Not in a branch, where variables cannot be made.
            self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        combined = aggregation.compute_gradients(gradients, variables)
        apply = super().apply  # type: ignore[misc]
        pairs = list(zip(combined, variables, strict=True))
        aggregation.apply_gradients(lambda: apply(combined, variables), self, pairs)


def wrap_keras_optimizer(
    optimizer: Any, how: HowCombined, local: LocalVariables, aggregation: LocalGradientAggregationHelper | None
) -> Any:
    """The optimizer, which from now on applies combined gradients.

    Raises ValueError for Adasum, one that is wrapped already, and Keras on another backend; TypeError for what is no optimizer
    of Keras'.
    """
    own_class = type(optimizer)
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer) or not hasattr(own_class, "apply"):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of keras.optimizers (Keras 3) or tf.compat.v1.train, got {own_class.__name__}"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError(  # noqa: TRY004
            f"this {own_class.__name__} is a DistributedOptimizer already"
        )
    if how.op is ReduceOp.Adasum:
        raise ValueError("op=hvd.Adasum is for optimizers of tf.compat.v1.train: with Keras use op=hvd.Average")
    if tf.keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on {tf.keras.backend.backend()} here: shoal.horovod.tensorflow is for Keras on TensorFlow"
        )
    names = {"__module__": own_class.__module__, "__qualname__": own_class.__qualname__, "__doc__": own_class.__doc__}
    optimizer.__class__ = type(own_class.__name__, (_Distributed, own_class), names)
    # Keras tracks what it holds in attributes; these are nothing that it should save.
    vars(optimizer).update(
        _shoal_combiner=Combiner("DistributedOptimizer", how), _shoal_local=local, _shoal_aggregation=aggregation
    )
    return optimizer
