"""The same variables on all ranks."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from shoal.job.groups import Group
from shoal.keras.naming import compare, members_of, names_of
from shoal.ops import collectives
from shoal.ops.arrays import DTYPES


def broadcast_variables(variables: Iterable[Any], root: int = 0, group: Group | None = None) -> None:
    """Gives each variable the value that it has on rank ``root``.

    Arguments:
        variables: of Keras, such as ``model.weights`` and ``optimizer.variables``; the same ones, with the same paths, shapes
            and dtypes, on every rank.
        root: a rank of the job that is a member of the group.
        group: the ranks that take part; None: all.

    Raises:
        ValueError: this rank, or ``root``, is no member.
        Mismatch: ranks have other variables; the message has the first that differs.
        PeerLost, Timeout, ShoalError: as ``shoal.broadcast``.
    """
    wanted = list(variables)
    members = members_of(group)
    names = names_of(wanted)
    compare(wanted, names, "variables", members)
    arrays = [_array(variable) for variable in wanted]
    handles = [
        collectives.broadcast_async_(_sendable(array), root, f"variable/{name}", group)
        for array, name in zip(arrays, names, strict=True)
    ]
    for handle in handles:
        handle.wait()
    if members.session.rank != root:
        for variable, array in zip(wanted, arrays, strict=True):
            variable.assign(array)


def _array(variable: Any) -> Any:
    """A copy that may be written to."""
    return np.array(keras.ops.convert_to_numpy(variable), order="C")


def _sendable(array: Any) -> Any:
    """Itself, or its bytes where the dtype is not one of Shoal's."""
    return array if array.dtype.name in DTYPES else array.reshape(-1).view(np.uint8)
