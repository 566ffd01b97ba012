"""Who this rank is, and waiting for the others, as tensors that a graph finds out when it runs.

A graph with one of them calls Python, and cannot be saved for another process. Eager, they are constants. All raise what
``hvd.rank()`` raises; in a graph that is tf.errors.InvalidArgumentError.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import shoal
from shoal.errors import ShoalError
from shoal.horovod.common import basics, process_sets
from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.job import runtime

# What Horovod answers where there is no job, or no such process set.
HOROVOD_PROCESS_SET_ERROR_INIT = -1
HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """How many ranks the process set with this number has."""
    return _number(lambda: len(_ranks(process_set_id)), name or "size")


def rank_op(name: str | None = None) -> Any:
    """This process's index in the job."""
    return _number(basics.rank, name or "rank")


def local_size_op(name: str | None = None) -> Any:
    """How many ranks are on this node."""
    return _number(basics.local_size, name or "local_size")


def local_rank_op(name: str | None = None) -> Any:
    """This process's index among the ranks of its node."""
    return _number(basics.local_rank, name or "local_rank")


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the process set with this number, else 0.

    Without a job HOROVOD_PROCESS_SET_ERROR_INIT, without such a set HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET.
    """
    return _number(lambda: _is_included(process_set_id), name or "process_set_included")


def join() -> Any:
    """Says that this rank has no more data, and is done once all ranks have: the rank that was last.

    Until then the all-reduces of the others go on; this rank counts as one that gives zeros, and averages are still divided
    by the number of all ranks. Other operations, and Adasum, are an error on the others. Raises HorovodInternalError, in a
    graph tf.errors.UnknownError.
    """
    return _number(_joined, "join")


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank of the process set has called it. Raises HorovodInternalError."""
    group = process_set.group
    try:
        shoal.barrier("barrier", group)
    except ShoalError as error:
        raise HorovodInternalError(str(error)) from error


def _joined() -> int:
    basics.size()  # refuses before init
    try:
        return shoal.join(global_process_set.group)
    except ShoalError as error:
        raise HorovodInternalError(str(error)) from error


def _ranks(process_set_id: int) -> tuple[int, ...]:
    registered = process_sets.table().ranks
    if process_set_id not in registered:
        raise ValueError(f"there is no process set {process_set_id} in this job: pass process_set.process_set_id")
    return registered[process_set_id]


def _is_included(process_set_id: int) -> int:
    if not runtime.is_initialized():
        return HOROVOD_PROCESS_SET_ERROR_INIT
    registered = process_sets.table().ranks
    if process_set_id not in registered:
        return HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET
    return int(runtime.rank() in registered[process_set_id])


def _number(find: Callable[[], int], name: str) -> Any:
    if tf.executing_eagerly():
        return tf.constant(find(), tf.int32)
    found = tf.numpy_function(lambda: np.int32(find()), [], tf.int32, name=name)
    found.set_shape([])
    return found
