"""The job that this process takes part in: joining it, leaving it, and who we are in it.

One job at a time. A job that was left may linger: its threads go on while other ranks still need the server in this
process, even through a new ``init``. docs/decisions/exit.md tells how the end of the process counts;
``shoal.job.process_exit`` does it.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.config.launchers import Launch
from shoal.config.settings import Limits, Settings
from shoal.errors import ConfigurationError, ShoalError
from shoal.job import bootstrap, process_exit, unheard

# Guards joining and leaving; reading _session needs no lock.
_lock = threading.RLock()
_session: bootstrap.Session | None = None
# The environment that _session was made from, before anything was added to it, and what came instead of a launcher's.
_settings: Settings | None = None
_own_launch: Launch | None = None
_forked = False


def init(
    store: Any = None, *, _launch: Launch | None = None, _limits: Limits | Mapping[str, int] | None = None
) -> None:
    """Joins the job that the environment describes; returns when all its ranks have.

    Does nothing if this process has joined already and the environment still says the same. ``store``: an object with
    ``get`` and ``set`` that all ranks share (such as PyTorch's TCPStore), which may carry the rendezvous address and the
    secret. Without a launcher's variables the job is this process alone.

    Raises ConfigurationError for variables that are wrong or differ between ranks, AuthenticationError for a wrong
    secret, PeerLost or Timeout if other ranks do not come, ShoalError if another job has been joined and not left.
    """
    global _session, _settings, _own_launch, _forked
    with _lock:
        settings = Settings.from_environment(os.environ, _launch or _own_launch)
        if _session is not None:
            if settings == _settings:
                return
            raise ShoalError(
                f"rank {_session.rank} has joined a job with other settings: call shoal.shutdown() before shoal.init()"
            )
        _check_trace_folder(settings)
        _session = bootstrap.join(settings, _limits or {}, store)
        _settings = settings
        _own_launch = _launch
        _forked = False
        process_exit.watch(_session)
        for joined in _after_joining:
            joined(_session)


def shutdown() -> None:
    """Leaves the job: waits until this rank's operations are done and says goodbye. Does nothing without ``init``.

    Other ranks may go on among themselves; what they call that needs this rank fails with PeerLost. Afterwards ``init``
    may be called again.

    Raises what made an operation fail that only a stream of an accelerator has waited for.
    """
    with _lock:
        if _session is None:
            return
        for leaving in _before_leaving:
            leaving()
        session = _forget()
        assert session is not None, "nobody else has left it meanwhile"
        try:
            process_exit.leave(session)
        finally:
            failure = unheard.take_first()
    if failure is not None:
        raise failure


def abort(reason: str) -> None:
    """Ends the job for all its ranks, which hear ``reason``. Does nothing without ``init``; ``init`` may be called again."""
    with _lock:
        session = _forget()
        if session is None:
            return
        try:
            process_exit.abort(session, reason)
        finally:
            for aborted in _after_abort:
                aborted(reason)
        unheard.wait_for_all()
        unheard.take_first()  # whoever ends the job knows


def call_around(
    after_joining: Callable[[bootstrap.Session], None],
    before_leaving: Callable[[], None],
    after_abort: Callable[[str], None],
) -> None:
    """For what is built on operations and belongs to a job's life: called at the end of ``init``, at the beginning of
    ``shutdown`` (a program may end without it: ``process_exit.call_before_leaving``), and with the reason after ``abort``."""
    _after_joining.append(after_joining)
    _before_leaving.append(before_leaving)
    _after_abort.append(after_abort)


_after_joining: list[Callable[[bootstrap.Session], None]] = []
_before_leaving: list[Callable[[], None]] = []
_after_abort: list[Callable[[str], None]] = []


def is_initialized() -> bool:
    """Whether this process has joined a job and not left it."""
    return _session is not None


def rank() -> int:
    """This process's index in the job, from 0. Raises ShoalError before ``init``, as the next three do."""
    return current().rank


def size() -> int:
    """How many ranks the job has."""
    return current().size


def local_rank() -> int:
    """This process's index among the ranks on its machine, from 0."""
    return current().settings.local_rank


def local_size() -> int:
    """How many ranks of the job are on this machine."""
    return current().settings.local_size


def allocate(size: int, for_device: bool = False) -> NDArray[np.uint8] | None:
    """``size`` bytes, all zero, for arrays that the ranks of this machine sum without staging: all ranks' must lie in
    such memory.

    ``for_device``: an accelerator is to read and write it by itself, so it has the same pages for good: after an error
    other ranks may still write there. None where there is none: the ranks share no memory. It lives as long as an array uses it,
    also after ``shutdown``. Raises ShoalError where the machine has not so much memory.
    """
    if _session is None or _session.size == 1:
        return None
    try:
        return _session.engine.allocate(size, for_device)
    except RuntimeError as error:
        raise ShoalError(str(error)) from None


def current() -> bootstrap.Session:
    """The job that this process takes part in. Raises ShoalError if there is none."""
    session = _session
    if session is not None:
        return session
    refuse_in_child()
    raise ShoalError("this process has not joined a job: call shoal.init() first")


def refuse_in_child() -> None:
    """Raises ShoalError if this process was forked from a rank and has not joined a job itself."""
    if _forked:
        raise ShoalError(
            "this process was forked from one that uses Shoal and is not a rank itself: use Shoal in the parent only, or "
            "call shoal.init() here with a RANK of its own"
        )


def _forget() -> bootstrap.Session | None:
    """From here on this process has not joined a job. Returns the one that it had."""
    global _session, _settings, _own_launch
    session, _session, _settings, _own_launch = _session, None, None, None
    return session


def _check_trace_folder(settings: Settings) -> None:
    """Before the job, not after it: that a timeline can be written there."""
    if settings.trace is None:
        return
    try:
        settings.trace.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.trace):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"SHOAL_TRACE={str(settings.trace)!r}: no timeline can be written there on rank {settings.rank} "
            f"({error.strerror}): name a folder that this process may write to"
        ) from None


def _forget_after_fork() -> None:
    """In a forked child: it is no rank. The parent's locks and threads do not exist here."""
    global _session, _settings, _own_launch, _lock, _forked
    _forked = _forked or _session is not None
    _session, _settings, _own_launch, _lock = None, None, None, threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)
