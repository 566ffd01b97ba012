"""An optimizer of Keras' that applies the gradients of all ranks, where Keras runs on TensorFlow: of Keras 3, and of 2.

The optimizer stays the same object, with its state. Its class becomes one that is derived from it and has its name and
module: so what is saved with it loads without Shoal.
"""

from collections.abc import Callable, Sequence
from types import new_class
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

    def _shoal_apply(self, gradients: list[Any], variables: list[Any], apply: Callable[[Sequence[Any]], Any]) -> Any:
        """What ``apply`` returns for the gradients of all ranks. With several passes a step, None."""
        aggregation = self._shoal_aggregation
        if aggregation is None:
            return apply(self._shoal_local.combine(gradients, variables, self._shoal_combiner))
        # Here, since variables cannot be made in a branch.
        if hasattr(self, "build") and not getattr(self, "built", False):
            with tf.init_scope():
                self.build(variables)
            if hasattr(self, "built"):
                self.built = True
        combined = aggregation.compute_gradients(gradients, variables)

        def apply_in_branch() -> None:
            apply(combined)

        aggregation.apply_gradients(apply_in_branch, self, list(zip(combined, variables, strict=True)))
        return None


class _OfKeras3(_Distributed):
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As Keras' own, with the gradients of all ranks. Raises as ``hvd.allreduce``."""
        given = self._trainable_variables if trainable_variables is None else trainable_variables  # type: ignore[attr-defined]
        variables = list(given)
        apply = super().apply  # type: ignore[misc]
        self._shoal_apply(list(grads), variables, lambda combined: apply(combined, variables))


class _OfKeras2(_Distributed):
    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        """As Keras' own, with the gradients of all ranks. Raises as ``hvd.allreduce``."""
        gradients, variables = (list(each) for each in zip(*grads_and_vars, strict=True))
        apply = super().apply_gradients  # type: ignore[misc]

        def apply_combined(combined: Sequence[Any]) -> Any:
            return apply(list(zip(combined, variables, strict=True)), *arguments, **options)

        return self._shoal_apply(gradients, variables, apply_combined)


def wrap_keras_optimizer(
    optimizer: Any, how: HowCombined, local: LocalVariables, aggregation: LocalGradientAggregationHelper | None
) -> Any:
    """The optimizer, which from now on applies combined gradients.

    Raises ValueError for Adasum, one that is wrapped already, and Keras on another backend; TypeError for what is no optimizer
    of Keras'.
    """
    own_class = type(optimizer)
    if not hasattr(own_class, "apply_gradients"):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of tf.keras.optimizers or tf.compat.v1.train, got {own_class.__name__}"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError(  # noqa: TRY004
            f"this {own_class.__name__} is a DistributedOptimizer already"
        )
    if how.op is ReduceOp.Adasum:
        raise ValueError("op=hvd.Adasum is for optimizers of tf.compat.v1.train: with Keras use op=hvd.Average")
    is_of_keras_3 = hasattr(own_class, "stateless_apply")
    if is_of_keras_3 and tf.keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on {tf.keras.backend.backend()} here: shoal.horovod.tensorflow is for Keras on TensorFlow"
        )
    names = {"__module__": own_class.__module__, "__qualname__": own_class.__qualname__, "__doc__": own_class.__doc__}
    mixed_in = _OfKeras3 if is_of_keras_3 else _OfKeras2
    optimizer.__class__ = new_class(own_class.__name__, (mixed_in, own_class), {}, lambda body: body.update(names))
    # Keras tracks what it holds in attributes; these are nothing that it should save.
    vars(optimizer).update(
        _shoal_combiner=Combiner("DistributedOptimizer", how), _shoal_local=local, _shoal_aggregation=aggregation
    )
    return optimizer
