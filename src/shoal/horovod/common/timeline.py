"""Horovod's timeline: ``shoal.start_timeline`` and ``stop_timeline``, which may be called at any time, in any order.

One file for all ranks, which rank 0 writes. What rank 0 was given counts, and decides on all ranks whether that file is
written already: a rank that thought otherwise would wait for the others.
"""

import logging
from pathlib import Path

import shoal
from shoal.horovod import environment
from shoal.horovod.common import process_sets as sets
from shoal.job import runtime
from shoal.job.per_job import PerJob
from shoal.ops.timeline.meeting import Meeting

_log = logging.getLogger("shoal")


class _Recording:
    """Where rank 0 writes this job's timeline now; None: nowhere. The same on all ranks."""

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
    session = runtime.current()
    recording = _recordings.of(session)
    everybody = Meeting(session, range(session.size), session.settings.timeout)
    of_rank_0 = everybody.objects(str(Path(file_path).absolute()))[0]
    if recording.path == of_rank_0:
        return
    if recording.path is not None:
        stop_timeline()
    shoal.start_timeline(file_path, mark_cycles)
    recording.path = of_rank_0


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
    """At ``init``: what HOROVOD_TIMELINE says, on rank 0. Nothing beside SHOAL_TRACE, which has the whole job."""
    session = runtime.current()
    if is_asked_there and session.settings.trace is not None:
        if session.rank == 0:
            _log.warning(
                "HOROVOD_TIMELINE is not used: SHOAL_TRACE records the whole job already, for a file in %s; unset it to have "
                "the other",
                session.settings.trace,
            )
    elif is_asked_there:
        own = environment.timeline()
        start_timeline("" if own is None else own.path, own is not None and own.marks_cycles)
