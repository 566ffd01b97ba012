"""How a process that uses Shoal ends, and what the other ranks hear of it.

| end of the process | the others hear |
|---|---|
| after ``shutdown`` | goodbye, at ``shutdown``; the process stays until nobody needs the server in it |
| exit status 0 without ``shutdown`` | goodbye, then the same |
| uncaught exception | its text, at once |
| any other exit status (``sys.exit(3)``) | the status, when the interpreter is gone |
| exit status 0, but an operation has failed that nobody waited for on the host | its text; the status becomes 1 |
| killed, ``os._exit`` | a broken connection: PeerLost |

Why it is done this way is in docs/decisions/exit.md.
"""

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from shoal.job import unheard
from shoal.job.bootstrap import Session

_log = logging.getLogger("shoal")

# Seconds that a process which ends because another one has ended waits, so that whoever started both sees the end of
# that one first: launchers take the first exit code for the job's. An interpreter with PyTorch takes some tenths to end.
_AFTER_CAUSE = 1.0

# The job that has been joined and not left.
_joined: Session | None = None
# Jobs that were left, but whose other ranks may still need the server in this process.
_lingering: list[Session] = []
_installed = False
# The child of multiprocessing, by process id, whose end is watched; not inherited by its own children.
_watched_child = 0


# Called before goodbye is said, and again when the process ends, with or without a goodbye.
_before: list[Callable[[], None]] = []


def call_before_leaving(callback: Callable[[], None]) -> None:
    """``callback`` is called, once or more, before this process leaves a job and when it ends. What it raises is logged."""
    _before.append(callback)


def watch(session: Session) -> None:
    """From now on the end of this process is also the end of its part in ``session``."""
    global _joined, _installed
    _joined = session
    _forget_ended()
    if not _installed:
        _installed = True
        _install()
    _watch_child()


def leave(session: Session) -> None:
    """Waits for this rank's operations and says goodbye. Interrupted, it is an abort."""
    global _joined
    _joined = None
    try:
        _prepare()
        unheard.wait_for_all()
        session.leave()
    except BaseException as error:
        session.abort(_text_of(error))
        raise
    _lingering.append(session)
    _forget_ended()


def abort(session: Session, reason: str) -> None:
    """Ends the job for everyone."""
    global _joined
    _joined = None
    session.abort(reason)


def _install() -> None:
    global _previous_hook
    atexit.register(_at_exit)
    _previous_hook = sys.excepthook
    sys.excepthook = _on_uncaught


def _watch_child() -> None:
    """A forked child of multiprocessing ends without running exit handlers, but runs its finalizers, once each."""
    global _watched_child
    if multiprocessing.parent_process() is not None and _watched_child != os.getpid():
        _watched_child = os.getpid()
        multiprocessing.util.Finalize(None, _at_end_of_child, exitpriority=100)


def _on_uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """sys.excepthook: prints as before, then tells the others if this is the end of the program."""
    _previous_hook(kind, error, where)
    if _ends_program(where):
        _abort(_text_of(error))


_previous_hook = sys.__excepthook__


def _ends_program(where: TracebackType | None) -> bool:
    """Whether an exception has left the main thread's outermost frame, and not at a prompt.

    Frameworks call the hook for exceptions that they survive too.
    """
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    if interactive or where is None or threading.current_thread() is not threading.main_thread():
        return False
    return where.tb_frame.f_back is None


def _at_exit() -> None:
    """The interpreter is about to end. Its exit status is known to nobody yet: the engine waits for it."""
    global _joined
    _prepare()
    try:
        unheard.wait_for_all()
    except KeyboardInterrupt:
        _log.warning("interrupted while operations were under way")
    failure = unheard.take_first()
    session, _joined = _joined, None
    if session is not None:
        reason = getattr(sys, "last_value", None)
        if reason is None and failure is not None:
            session.abort(_text_of(failure))
        else:
            session.finish_at_exit("" if reason is None else _text_of(reason))
    _wait_for_lingering()
    if failure is not None:
        _end_badly(failure)


def _end_badly(failure: BaseException) -> None:
    """The interpreter takes no exit status from here. What is left of its end are handlers that are older than the job."""
    _log.critical("%s", _text_of(failure))
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(1)


def _at_end_of_child() -> None:
    """The end of a child of multiprocessing: in the middle of an exception if it failed."""
    error = sys.exc_info()[1]
    session = _joined
    if session is None:
        return
    if error is None:
        unheard.wait_for_all()
        error = unheard.take_first()
        if error is not None:
            _abort(_text_of(error))
            _end_badly(error)
        leave(session)
    else:
        _abort(_text_of(error))
    _wait_for_lingering()


def _prepare() -> None:
    for callback in _before:
        try:
            callback()
        except Exception:
            _log.exception("what was to be done before leaving the job failed")


def _abort(reason: str) -> None:
    global _joined
    session, _joined = _joined, None
    if session is not None:
        follows = session.has_losses()
        session.abort(reason)
        if follows:
            time.sleep(_AFTER_CAUSE)


def _wait_for_lingering() -> None:
    """Serves what was left until nobody needs it. KeyboardInterrupt ends it at once."""
    while _lingering:
        session = _lingering[0]
        try:
            if session.serves:
                session.wait_ended(None)
            else:
                session.close()
        except BaseException:
            for other in _lingering:
                other.close()
            _lingering.clear()
            raise
        _lingering.remove(session)


def _forget_ended() -> None:
    _lingering[:] = [session for session in _lingering if not session.wait_ended(0)]


def _text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _forget_after_fork() -> None:
    global _joined
    _joined = None
    _lingering.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
