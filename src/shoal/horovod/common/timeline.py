"""Horovod's timeline: ``shoal.start_timeline`` and ``stop_timeline``, which may be called at any time, in any order.

One file for all ranks, which rank 0 writes: what rank 0 was given counts.
"""

import logging

import shoal
from shoal.horovod import environment
from shoal.horovod.common import process_sets as sets
from shoal.job import runtime
from shoal.job.per_job import PerJob

_log = logging.getLogger("shoal")


class _Recording:
    """Where this job's timeline is written now; None: nowhere."""

    path: str | None = None


_recordings: PerJob[_Recording] = PerJob(lambda _: _Recording())


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what operations do from now on, for all ranks in one file of Chrome trace events. Every rank calls it.

    Does nothing if that file is being written; if another one is, that ends here.

    Arguments:
        file_path: where rank 0 writes it.
        mark_cycles: whether it shows when what was submitted goes out.

    Raises:
        ValueError: before ``init``.
        ShoalError: as ``shoal.start_timeline``.
    """
    sets.table()
    recording = _recordings.of(runtime.current())
    if recording.path == file_path:
        return
    if recording.path is not None:
        stop_timeline()
    shoal.start_timeline(file_path, mark_cycles)
    recording.path = file_path


def stop_timeline() -> None:
    """Ends the recording, and closes its file. Every rank calls it. Does nothing if nothing is recorded.

    Raises as ``start_timeline``.
    """
    sets.table()
    recording = _recordings.of(runtime.current())
    if recording.path is not None:
        recording.path = None
        shoal.stop_timeline()


def start_as_rank_0_says(is_asked_there: bool) -> None:
    """At ``init``: what HOROVOD_TIMELINE says, on rank 0. Nothing where SHOAL_TRACE, which all ranks have then, records already."""
    if not is_asked_there:
        return
    own, session = environment.timeline(), runtime.current()
    if session.settings.trace is None:
        start_timeline("" if own is None else own.path, own is not None and own.marks_cycles)
    elif session.rank == 0:
        _log.warning("HOROVOD_TIMELINE has no effect: SHOAL_TRACE=%s records a timeline", session.settings.trace)
