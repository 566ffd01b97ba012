"""When a timeline is recorded: from ``init`` on with SHOAL_TRACE, and from ``start_timeline`` to ``stop_timeline``.

At its end the ranks bring their events together in rank 0's file. Who cannot, since a rank is lost or has not come,
writes its own into a file of its own, which says why.
"""

import logging
import os
import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from shoal.assembly.terms import rank_name
from shoal.errors import ConfigurationError, PeerLost, ShoalError
from shoal.job import process_exit, runtime, trace, unheard
from shoal.job.session import Session
from shoal.ops.timeline import chrome, clocks, collecting
from shoal.ops.timeline.clocks import Clock, Offset
from shoal.ops.timeline.collecting import About
from shoal.ops.timeline.live import Live
from shoal.ops.timeline.meeting import Meeting

_log = logging.getLogger("shoal")

# Seconds to wait for ranks that do not come: at ``shutdown``, which needs nobody otherwise, and where a program ends
# without it, perhaps with an error that the others should hear soon.
_PATIENCE_AT_SHUTDOWN, _PATIENCE_AT_EXIT = 120.0, 15.0
# How long the news of a loss may take inside this process.
_HEARING = 1.0


@dataclass(frozen=True)
class _Timeline:
    """One that is recorded now. ``live``: on rank 0, where its file is written meanwhile."""

    session: Session
    recorder: trace.Recorder
    path: Path
    about: About
    offsets: list[Offset]
    live: Live | None

    @property
    def own_path(self) -> Path:
        """Of the file for this rank alone."""
        return self.path.with_name(f"{self.path.stem}-rank{self.session.rank}{self.path.suffix or '.json'}")


_timeline: _Timeline | None = None


def start_timeline(path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begins to record what all ranks do, for ``stop_timeline``, ``shutdown`` or the end of the program to write.

    Collective: every rank calls it, between the same operations. Rank 0 writes the file and says in it meanwhile what it
    has seen itself; that can be opened at any time. May be called again after ``stop_timeline``.

    Arguments:
        path: of the file. What rank 0 gives counts; on another rank it says where that rank's own events go if they
            cannot come to rank 0, and "" stands for rank 0's.
        mark_cycles: also marks when operations are written to the network or to shared memory (CYCLE_START). What rank
            0 gives counts.

    Raises:
        ShoalError: before ``init``; a timeline is recorded already, also that of SHOAL_TRACE; rank 0 cannot write there.
        PeerLost, Timeout: a rank is gone, or has not called it for so long as SHOAL_TIMEOUT says.
    """
    session = runtime.current()
    if _timeline is not None:
        raise ShoalError(
            f"{rank_name(session.rank, session.hosts)} records a timeline already, {_timeline.path}: call "
            "shoal.stop_timeline() first"
        )
    _begin(session, Path(path), mark_cycles, writes_live=True)


def stop_timeline() -> None:
    """Ends what ``start_timeline`` or SHOAL_TRACE has begun; returns when rank 0 has written the file.

    Collective. All ranks' events are in it, on rank 0's clock.

    Raises:
        ShoalError: before ``init``; no timeline is recorded; the ranks' events could not be brought together, or not be
            written. Each rank's are in a file of its own then, beside the one that was asked for.
    """
    session = runtime.current()
    if _timeline is None:
        raise ShoalError(
            f"{rank_name(session.rank, session.hosts)} records no timeline: call shoal.start_timeline(path) first"
        )
    failure = _finish(session.settings.timeout)
    if failure is not None:
        raise failure


def _begin(session: Session, path: Path, marks_cycles: bool, writes_live: bool) -> None:
    """Collective. ``path``: of the file; without ``writes_live``, a folder for it."""
    global _timeline
    meeting = Meeting(session, range(session.size), session.settings.timeout)
    began_at = datetime.now(timezone.utc)
    problem = _problem_with(path) if meeting.leads and writes_live else ""
    said = meeting.objects([str(path.absolute()), problem, began_at.isoformat(), marks_cycles])
    first_path, problem, began, marks_cycles = said[0]
    if problem:
        raise ConfigurationError(
            f"{rank_name(0, session.hosts)} cannot write a timeline to {first_path!r} ({problem}): name a file that it "
            "may write to"
        )
    if not writes_live:
        stamp = re.sub(r"\D", "", began.partition("+")[0])[:17]  # to the millisecond
        label = re.sub(r"[^\w.-]", "_", session.settings.job) or "shoal"
        path = path / f"{label}-{stamp}.json"
    elif path == Path():
        path = Path(first_path)
    path = path.absolute()  # the program may go to another folder meanwhile
    offsets = clocks.measure(meeting)
    recorder = trace.Recorder()
    # Rank 0's clock when it measured: nobody has recorded anything before.
    epoch_ns = offsets[0].at_ns
    names = [rank_name(rank, session.hosts) for rank in range(session.size)]
    about = About(session.settings.job, names, began, epoch_ns, marks_cycles)
    live = None
    if writes_live and meeting.leads:
        drawn = chrome.Rank(0, names, Clock(offsets[0], offsets[0]), epoch_ns, marks_cycles)
        try:
            live = Live(path, drawn, recorder)
        except (OSError, RuntimeError) as error:  # a moment ago it could; the system has no thread
            _log.warning("%s cannot write the timeline while it is recorded: %s", names[0], error)
    session.engine.record(True)
    _timeline = _Timeline(session, recorder, path, about, offsets, live)
    trace.start(recorder)


def _problem_with(path: Path) -> str:
    """Why there can be no file; "" if there can."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _finish(patience: float, aborted: str | None = None) -> ShoalError | None:
    """Writes the file, or this rank's own. What has kept the ranks' events apart; None if nothing has.

    ``aborted``: why this rank has ended the job.
    """
    global _timeline
    timeline, _timeline = _timeline, None
    if timeline is None:
        return None
    trace.stop()
    if timeline.live is not None:
        timeline.live.end()
    recording = timeline.recorder.end()
    session = timeline.session
    try:
        session.engine.record(False)
        missing = {} if aborted is None else {rank: ShoalError(aborted) for rank in range(session.size)}
        _meet(timeline, recording, missing or _missing(session), patience)
    except ShoalError as error:
        _write_alone(timeline, recording, error)
        return error
    if session.rank == 0:
        _log.info("timeline written to %s", timeline.path)
    return None


def _meet(timeline: _Timeline, recording: trace.Recording, missing: dict[int, ShoalError], patience: float) -> None:
    """Brings the events of those together who are not ``missing``. Raises what keeps them apart.

    Not all ranks may know of a loss when they come to meet. Who did not meets in a group in which nothing can be done any
    more, hears so at once, and comes to the others: in the end all meet in the group of those that are there.
    """
    session = timeline.session
    while True:
        # The end of the job leaves nobody to meet, and without rank 0 there is nobody who writes.
        if missing and (0 in missing or len(missing) >= session.size - 1):
            raise next(iter(missing.values()))
        present = [rank for rank in range(session.size) if rank not in missing]
        said = {timeline.about.names[rank]: str(why) for rank, why in missing.items()}
        meeting = Meeting(session, present, patience)
        try:
            return collecting.bring_together(meeting, timeline.about, timeline.offsets, recording, timeline.path, said)
        except PeerLost:
            known, missing = missing, _more_missing(session, missing)
            if missing.keys() <= known.keys():
                raise


def _missing(session: Session) -> dict[int, ShoalError]:
    """Who can send nothing any more, and why."""
    if not session.has_losses():
        return {}
    losses = {rank: session.loss_of(rank) for rank in range(session.size) if rank != session.rank}
    return {rank: why for rank, why in losses.items() if why is not None}


def _more_missing(session: Session, known: dict[int, ShoalError]) -> dict[int, ShoalError]:
    """The same, when it has more than is known. What needs a lost rank may fail a moment before this rank says who is lost."""
    until = time.monotonic() + _HEARING
    missing = _missing(session)
    while missing.keys() <= known.keys() and time.monotonic() < until:
        time.sleep(0.01)
        missing = _missing(session)
    return missing


def _write_alone(timeline: _Timeline, recording: trace.Recording, why: ShoalError) -> None:
    rank = timeline.session.rank
    try:
        collecting.write_alone(timeline.own_path, rank, timeline.about, timeline.offsets[rank], recording, str(why))
    except OSError as error:
        _log.warning("%s could not write its timeline to %s: %s", timeline.about.names[rank], timeline.own_path, error)
        return
    _log.warning(
        "the ranks' timelines could not be brought together; that of %s is in %s: %s",
        timeline.about.names[rank],
        timeline.own_path,
        why,
    )


def _after_joining(session: Session) -> None:
    if session.settings.trace is None:
        return
    try:
        _begin(session, session.settings.trace, marks_cycles=False, writes_live=False)
    except ShoalError as error:
        # The job can go on, or ends by itself.
        _log.warning("no timeline is recorded on %s: %s", rank_name(session.rank, session.hosts), error)


def _before_leaving() -> None:
    if _timeline is not None:
        unheard.wait_for_all()
        _finish(min(_PATIENCE_AT_SHUTDOWN, runtime.current().settings.timeout))


def _at_exit() -> None:
    _finish(_PATIENCE_AT_EXIT)


def _after_abort(reason: str) -> None:
    _finish(0.0, reason)


def _forget_after_fork() -> None:
    global _timeline
    _timeline = None
    trace.stop()


runtime.call_around(_after_joining, _before_leaving, _after_abort)
process_exit.call_before_leaving(_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)
