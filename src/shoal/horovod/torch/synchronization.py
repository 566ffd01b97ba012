"""Waiting: for operations by their handles, for all ranks at a barrier, and for those that have more data in ``join``."""

from typing import Any

import shoal
from shoal.errors import ShoalError
from shoal.horovod.common import basics, handles
from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.horovod.common.handles import Alone
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch import submission
from shoal.ops import operations


def poll(handle: int) -> bool:
    """Whether ``synchronize`` would return at once. Raises ValueError for a handle that was waited for, or is none."""
    return handles.done(handle)


def synchronize(handle: int) -> Any:
    """Waits for an operation: its tensor, or a tuple of them. None if it was waited for before.

    Raises HorovodInternalError if it has failed; the cause says whether a rank is lost, late, or called it otherwise.
    """
    return handles.wait(handle)


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and returns once all ranks have: the rank that was last.

    Until then the all-reduces of the others go on; this rank counts as one that gives zeros, and averages are still divided
    by the number of all ranks. Other operations are an error on the others. ``device`` is taken, and means nothing.
    """
    basics.size()  # refuses before init
    try:
        return shoal.join(global_process_set.group)
    except ShoalError as error:
        raise HorovodInternalError(str(error)) from error


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank of the process set has called it. Raises HorovodInternalError."""
    Alone(submission.barrier(process_set.group, operations.barrier), lambda _: None).wait()
