"""The class of a distributed optimizer: the program's own, whose gradients are averaged before it sees them.

It has the name and place of the class that it is made of, so that files say that one and load without Shoal.
"""

from collections.abc import Sequence
from typing import Any

import keras

from shoal.keras.averaging import Averaging


def distributed(base: type, averaging: Averaging) -> type:
    """A subclass of an optimizer's class."""

    class Distributed(base):
        _shoal_averaging = averaging

        def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
            grads = list(grads)
            variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
            # Without gradients Keras does nothing, and without variables it tells itself what is missing.
            if grads and trainable_variables is not None:
                _check_counts(grads, variables)
            if not averaging.waits_for_last(self, variables) and len(grads) == len(variables):
                grads = averaging.of_step(grads, variables)
            return super().apply(grads, None if trainable_variables is None else variables)

        def stateless_apply(
            self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
        ) -> Any:
            # Some do all of it here, LossScaleOptimizer among them; others go on to ``apply``.
            variables = self._trainable_variables
            if self.built:
                _check_counts(grads, variables)
            if not self.built or averaging.waits_for_last(self, variables):
                return super().stateless_apply(optimizer_variables, grads, trainable_variables)
            averaged = averaging.of_step(grads, variables)
            with averaging.done():
                return super().stateless_apply(optimizer_variables, averaged, trainable_variables)

        def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> Any:
            with averaging.accumulating(self, trainable_variables):
                return super()._backend_apply_gradients(grads, trainable_variables)

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            return super()._clip_gradients(averaging.of_accumulated(self, grads))

        def __setattr__(self, name: str, value: Any) -> None:
            refuse_inside(self, name, value)
            super().__setattr__(name, value)

        @property
        def _shoal_has_begun(self) -> bool:
            return averaging.has_begun

    _take_name(Distributed, base)
    return Distributed


def refuse_inside(optimizer: Any, name: str, value: Any) -> None:
    """Before an attribute is set. Raises ValueError where another optimizer takes this one, as it sets this to None."""
    # In the optimizer's own __init__ it is not there yet.
    if name == "loss_scale_factor" and value is None and name in vars(optimizer):
        raise ValueError(_INNER)


def _check_counts(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Raises ValueError where there is not one gradient for each variable. Keras would take the first ones."""
    if len(gradients) != len(variables):
        raise ValueError(
            f"an optimizer was given {len(gradients)} gradients for {len(variables)} variables: give it one for each, in the "
            "same order, and None for a variable that has none"
        )


_INNER = (
    "a DistributedOptimizer must be the outermost optimizer, but this one was given to another, such as a LossScaleOptimizer, "
    "which would decide on each rank by that rank's own gradients whether to skip a step. Where the dtype policy is mixed_float16, "
    "Keras's compile does that: compile with DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), or with "
    "auto_scale_loss=False"
)


def is_distributed(optimizer: Any) -> bool:
    return isinstance(getattr(optimizer, "_shoal_averaging", None), Averaging)


def check_outermost(model: Any) -> None:
    """Before the first step. Raises ValueError if another optimizer has taken a distributed one, of ``shoal.horovod`` too.

    Most are refused by ``refuse_inside``, but not those of Keras 2, and one that was made distributed later.
    """
    inner = getattr(model.optimizer, "inner_optimizer", None)
    if hasattr(inner, "_shoal_has_begun"):
        raise ValueError(_INNER)


def check_averages(model: Any) -> None:
    """After a step. Raises RuntimeError if the model has a distributed optimizer, and its step is from before that.

    That of ``shoal.keras`` or ``shoal.horovod``.
    """
    if not getattr(model.optimizer, "_shoal_has_begun", True):
        raise RuntimeError(
            f"the gradients of the model {model.name!r} were not averaged: Keras compiled its step before the optimizer was wrapped. "
            "Call model.compile again after DistributedOptimizer(optimizer)"
        )


def _take_name(made: type, base: type) -> None:
    made.__name__, made.__qualname__, made.__doc__ = base.__name__, base.__qualname__, base.__doc__
    public = getattr(keras.optimizers, base.__name__, None)
    # Keras's own are written under their public names, on PyTorch too, where what trains is a subclass of the public one.
    is_keras = isinstance(public, type) and issubclass(base, public) and base.__module__.startswith("keras.")
    made.__module__ = keras.optimizers.__name__ if is_keras else base.__module__
    registered: str = keras.saving.get_registered_name(base)
    package, found, name = registered.partition(">")
    if found:
        register = keras.saving.register_keras_serializable
        register(package, name)(made)
        # The name stands for the program's class again, and both are written under it.
        register(package, name)(base)
