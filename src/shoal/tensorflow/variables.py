"""Variables that all ranks begin with."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from shoal.job.groups import Group, world
from shoal.ops.arrays import DTYPES
from shoal.tensorflow.collectives import broadcast


def broadcast_variables(variables: Iterable[Any], root: int = 0, group: Group | None = None) -> Any:
    """Gives the variables the values that they have on rank ``root``: all of them on their way at the same time.

    Arguments:
        variables: of TensorFlow or Keras, the same ones in the same order on every member.
        root: a rank of the job that is a member of the group.
        group: the members; None: all ranks.

    Returns: None when executing eagerly; in a graph the operation that does it.

    Raises:
        TypeError: a variable is of a dtype that Shoal lacks (strings, complex numbers).
        tf.errors.FailedPreconditionError: members have different variables.
        ValueError, tf.errors.AbortedError, tf.errors.UnknownError: as ``shoal.tensorflow.broadcast``.
    """
    chosen = world() if group is None else group
    given = list(variables)
    for variable in given:
        if tf.as_dtype(variable.dtype).name not in DTYPES:
            raise TypeError(
                f"variable {name_of(variable)} is of {tf.as_dtype(variable.dtype).name}, which cannot be sent"
            )

    def assign_all() -> list[Any]:
        return [
            _assign(variable, broadcast(variable, root, f"variable {index} ({name_of(variable)})", chosen))
            for index, variable in enumerate(given)
        ]

    if not tf.executing_eagerly():
        return tf.group(*assign_all())

    @tf.function(autograph=False)  # where they do not wait for each other
    def together() -> None:
        assign_all()

    if given:
        together()
    return None


def name_of(variable: Any) -> str:
    """For messages, and to match ranks' variables: the same wherever the same program has made it."""
    return str(getattr(variable, "path", None) or variable.name)


def _assign(variable: Any, value: Any) -> Any:
    assigned = variable.assign(value)
    # Keras's variables return their value.
    return getattr(assigned, "op", assigned) if assigned is not None else tf.no_op()
