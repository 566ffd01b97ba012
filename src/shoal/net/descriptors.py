"""Descriptors of this process: how many are in use, how many it may have, and how many a job needs.

A job of hundreds of ranks needs more than the 1024 that a process may have by default. How many it needs is known
before they are opened. So the soft limit is raised by that many, and the program keeps as many as it had. If the hard
limit forbids that, an error with both numbers says so before anything is opened. The program may still use descriptors
up later, with files of its own. Then too an error says so at once; nothing waits for descriptors to become free.
"""

import errno
import logging
import resource
from collections.abc import Mapping
from pathlib import Path

from shoal.errors import ConfigurationError

_log = logging.getLogger("shoal")

# For what is open only for a moment: files that are read, names that are looked up, callers who have not said who they are.
_IN_PASSING = 16

# What "no descriptors left" is called: for this process, and for the machine.
_GONE = (errno.EMFILE, errno.ENFILE)

HOW_TO_RAISE = "raise it where the process is started (ulimit -n, /etc/security/limits.conf, LimitNOFILE= of systemd, --ulimit nofile= of docker)"

# The soft limit before it was first raised, and what it was raised to.
_before, _after = 0, 0


def exhausted(error: BaseException) -> bool:
    """Whether an error says that there are no descriptors left."""
    return isinstance(error, OSError) and error.errno in _GONE


def in_use() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # without the one that has looked
    except OSError as error:
        # None left to look with, or no /proc: then there are at least those of every process.
        return _limits()[0] if exhausted(error) else 3


def allowed() -> int:
    """The soft limit."""
    return _limits()[0]


def say_gone(error: OSError) -> str:
    """What an error for which ``exhausted`` means, with the numbers."""
    if error.errno == errno.ENFILE:
        return "the machine has no descriptors left (fs.file-max)"
    return f"this process has no descriptors left: it may have {allowed()} (ulimit -n)"


def provide(
    who: str, needed: Mapping[str, int], later: Mapping[str, int], *, opened: int = 0, advice: str = ""
) -> None:
    """Sees to it that this process may open as many more as are ``needed``, and, if it can be had, as many as it may need ``later``.

    Both by what they are for, as in "connections to servers". ``who``: this process, for messages. ``opened``: so many has the job
    already. ``advice``: what else helps.
    Raises ConfigurationError where the hard limit forbids what is needed.
    """
    used, (soft, hard) = in_use(), _limits()
    now, at_last = sum(needed.values()), sum(needed.values()) + sum(later.values())
    if used + now + _IN_PASSING > hard:
        raise ConfigurationError(
            f"{who} needs {used + now + _IN_PASSING} descriptors for this job ({_list_of(needed)}; {used} are open already), and may "
            f"have {hard}, its hard limit: {HOW_TO_RAISE}{advice}"
        )
    if used + at_last + _IN_PASSING > hard:
        _log.warning(
            "%s may need %d descriptors later (%s; %d are in use or needed now) and may have %d, its hard limit: %s",
            *(who, used + at_last + _IN_PASSING, _list_of(later), used + now + _IN_PASSING, hard, HOW_TO_RAISE),
        )
    # What is open now may be more than what the program and this job have: a job that was left may still be ending.
    wanted = max(_of_the_program(soft) + opened, used) + at_last + _IN_PASSING
    _raise_to(who, min(hard, wanted), needed, later)


def before() -> int | None:
    """The soft limit before it was raised here, for what this process starts; None where it was not raised."""
    return _before if _limits()[0] == _after else None


def raise_to_the_most(who: str) -> None:
    """For a process that is only ours."""
    soft, hard = _limits()
    if soft < hard:
        _set(hard, hard)
        _log.info("%s may have %d descriptors, its hard limit, instead of %d", who, hard, soft)


def _of_the_program(soft: int) -> int:
    """The soft limit as it would be without us: a job that comes after another does not raise it again."""
    return _before if soft == _after else soft


def _raise_to(who: str, wanted: int, needed: Mapping[str, int], later: Mapping[str, int]) -> None:
    global _before, _after
    soft, hard = _limits()
    if wanted <= soft:
        return
    _before, _after = _of_the_program(soft), wanted
    _set(wanted, hard)
    _log.info(
        "%s may have %d descriptors instead of %d: this job needs %s", who, wanted, soft, _list_of({**needed, **later})
    )


def _limits() -> tuple[int, int]:
    """Soft and hard; no limit is one that nobody reaches."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 30
    return (most if soft == resource.RLIM_INFINITY else soft), (most if hard == resource.RLIM_INFINITY else hard)


def _set(soft: int, hard: int) -> None:
    _, exact = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, exact if exact == resource.RLIM_INFINITY else hard))


def _list_of(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} for {what}" for what, count in counts.items() if count)
