"""Momentum correction (Goyal et al., 2017, section 3, remark 3): velocities that grow and shrink with the learning rate.

Where the learning rate is part of the velocity, as in Keras's SGD, its old values keep their weight after a change. Goyal et al.
multiply the momentum of the first step after it by the new rate over the old one; multiplying the velocities does the same, and
reaches steps that are compiled.
"""

from collections.abc import Iterable
from typing import Any

import keras


def velocities(optimizer: Any) -> list[Any]:
    """The variables that the learning rate is part of; none where there is no momentum."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return velocities(inner)
    if not getattr(optimizer, "momentum", None):
        return []
    if isinstance(optimizer, keras.optimizers.SGD):
        found = getattr(optimizer, "momentums", [])
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        found = getattr(optimizer, "_momentums", [])
    else:
        return []
    return [variable for variable in found if variable is not None]


def correct(variables: Iterable[Any], before: float, after: float) -> None:
    """The learning rate changes from ``before`` to ``after``, which is part of these velocities."""
    if before == after or before == 0.0:
        return
    for variable in variables:
        variable.assign(variable * (after / before))
