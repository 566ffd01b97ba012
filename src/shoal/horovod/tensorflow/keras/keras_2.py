"""What optimizers of Keras 2 are asked in other words than those of Keras 3: its own, and the older ones (``legacy``)."""

from typing import Any

from shoal.keras.callbacks import momentum


def build(optimizer: Any, variables: Any) -> None:
    """Makes the optimizer's state now, if that is not there yet."""
    if optimizer is None or getattr(optimizer, "built", False):
        return
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """The optimizer's state, which is an attribute, or what a method returns."""
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) and not isinstance(variables, list) else variables)


def velocities(optimizer: Any) -> list[Any]:
    """The variables that the learning rate is part of; none where there is no momentum."""
    if not hasattr(optimizer, "get_slot_names"):
        return momentum.velocities(optimizer)
    is_in_velocity = {"SGD", "RMSprop"} & {each.__name__ for each in type(optimizer).__mro__}
    if not is_in_velocity or "momentum" not in optimizer.get_slot_names():
        return []
    return [variable for variable in optimizer.variables() if variable.name.endswith("/momentum:0")]
