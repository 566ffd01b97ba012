"""Objects of Python's that all ranks get, as pickles: of a rank of the same job, which has the job's secret.

What ``pickle`` refuses, such as a lambda, the package cloudpickle takes where it is installed.
"""

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import shoal
from shoal.errors import ShoalError
from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.horovod.common.process_sets import ProcessSet
from shoal.job import runtime
from shoal.job.groups import Group
from shoal.ops import submissions


def broadcast_object(make: Callable[[], Any], root_rank: int, label: str, process_set: ProcessSet) -> Any:
    """What ``make`` returns on the root: there that itself, elsewhere a copy.

    Arguments:
        make: called on the root alone. What goes wrong with it there is an error on all ranks.
        root_rank: a rank of the job that is in the process set.
        label: for messages; the same on all ranks.

    Raises what ``make`` and pickle raise, on the root; ValueError for a wrong root or process set; HorovodInternalError.
    """
    group = process_set.group
    if runtime.rank() == root_rank:
        with _failing_everywhere("broadcast", f"broadcast.{label}.sz", group):
            obj = make()
            content = to_bytes(obj)
        _call(lambda: shoal.broadcast(np.array([len(content)]), root_rank, f"broadcast.{label}.sz", group))
        _call(lambda: shoal.broadcast(content, root_rank, f"broadcast.{label}.t", group))
        return obj
    size = _call(lambda: shoal.broadcast(np.zeros(1, np.int64), root_rank, f"broadcast.{label}.sz", group))
    content = _call(lambda: shoal.broadcast(np.empty(int(size[0]), np.uint8), root_rank, f"broadcast.{label}.t", group))
    return from_bytes(content)


def allgather_object(obj: Any, label: str, process_set: ProcessSet) -> list[Any]:
    """The objects of all ranks of the process set, in its order. Raises as ``broadcast_object``."""
    group = process_set.group
    with _failing_everywhere("allgather", f"allgather.{label}.sz", group):
        content = to_bytes(obj)
    sizes = _call(lambda: shoal.allgather(np.array([len(content)]), f"allgather.{label}.sz", group))
    gathered = _call(lambda: shoal.allgather(content, f"allgather.{label}.t", group))
    return [from_bytes(each) for each in np.split(gathered, np.cumsum(sizes)[:-1])]


def to_bytes(obj: Any) -> Any:
    """An array of uint8. Raises what pickle raises."""
    try:
        content = pickle.dumps(obj)
    except Exception:
        try:
            import cloudpickle  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        content = cloudpickle.dumps(obj)
    return np.frombuffer(content, np.uint8)


def from_bytes(content: Any) -> Any:
    """The object of ``to_bytes``."""
    return pickle.loads(content.tobytes())


def _failing_everywhere(kind: str, name: str, group: Group) -> AbstractContextManager[None]:
    return submissions.failing_everywhere(kind, name, group)


def _call(operation: Callable[[], Any]) -> Any:
    try:
        return operation()
    except ShoalError as error:
        raise HorovodInternalError(str(error)) from error
