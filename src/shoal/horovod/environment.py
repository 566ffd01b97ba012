"""Horovod's environment variables: those that mean something here become Shoal's, and the others are named once in the log.

    HOROVOD_FUSION_THRESHOLD               SHOAL_FUSION_MB: the buffers of shoal.torch.DistributedDataParallel, and of TensorFlow's gradients
    HOROVOD_LOG_LEVEL                      SHOAL_LOG
    HOROVOD_STALL_SHUTDOWN_TIME_SECONDS    SHOAL_TIMEOUT
    HOROVOD_GLOO_IFACE                     SHOAL_INTERFACE
    HOROVOD_TIMELINE, ..._MARK_CYCLES      read by ``init`` (common/basics.py)
    HOROVOD_STALL_CHECK_TIME_SECONDS       warnings of operations that do not move come no earlier; Shoal's first is after 10 s
    HOROVOD_STALL_CHECK_DISABLE            none come
    HOROVOD_RANK, _SIZE, ...               set for scripts that are run as they are (``tell_rank``)

What is Shoal's and set already counts. No other module reads a variable of Horovod's.
"""

import logging
import math
import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

from shoal.config.launchers import read_launch
from shoal.errors import ConfigurationError

_log = logging.getLogger("shoal")

_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "fatal": "critical",
}

# What launchers of Horovod's set in each process, and what nothing here depends on: no reason to say anything.
_SILENT = {
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_DYNAMIC_PROCESS_SETS",
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_LOG_HIDE_TIME",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_TIMELINE",
    "HOROVOD_TIMELINE_MARK_CYCLES",
}

# Who moves Horovod's bytes: "gloo" or "mpi" where its own launcher has set the variables.
_CONTROLLER, _SHOAL = "HOROVOD_CONTROLLER", "shoal"

_STALL_CHECKS = ("HOROVOD_STALL_CHECK_DISABLE", "HOROVOD_STALL_CHECK_TIME_SECONDS")

# In the core's warnings of an operation that does not move (native/protocol/worker/progress.cpp, local/progress_watch.cpp).
_STALLED = re.compile(r"has not moved on .*? for ([\d.]+) s")


class StallFilter(logging.Filter):
    """Lets warnings of operations that do not move through after ``seconds`` alone."""

    seconds = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not self.seconds or record.levelno != logging.WARNING:
            return True
        found = _STALLED.search(record.getMessage())
        return found is None or float(found[1]) >= self.seconds


_stall_filter = StallFilter()


class Timeline(NamedTuple):
    """Where the timeline is to be written from ``init`` on."""

    path: str
    marks_cycles: bool


# Shoal's variables that were set here, with what they were set to: a later ``init`` may find another value of Horovod's.
_set: dict[str, str] = {}
_named: set[str] = set()


def apply(environ: MutableMapping[str, str] = os.environ) -> None:
    """Before the job is joined: sets Shoal's variables, and says what means nothing here.

    Raises ConfigurationError for a value that cannot be read, and if Horovod's launcher says that there are other ranks
    of which Shoal knows nothing.
    """
    for name, value in _set.items():
        if environ.get(name) == value:
            del environ[name]
    _set.clear()
    for name, (shoals, translate) in _TRANSLATED.items():
        text = environ.get(name)
        translated = None if text is None else translate(name, text.strip())
        if translated is not None and shoals not in environ:
            environ[shoals] = _set[shoals] = translated
    _stall_filter.seconds = _seconds_until_warnings(environ)
    _log.addFilter(_stall_filter)
    _name_the_others(environ)
    _check_launcher(environ)


def tell_rank(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets what scripts read that do not ask hvd.rank(): HOROVOD_RANK and _SIZE, HOROVOD_LOCAL_RANK and _LOCAL_SIZE.

    Where no launcher has started this process, or Horovod's own, nothing changes. Raises ConfigurationError if a
    launcher's variables are wrong.
    """
    launch = read_launch(environ)
    if not launch.said_by or ("HOROVOD_RANK" in environ and environ.get(_CONTROLLER) != _SHOAL):
        return
    environ.update(
        {
            _CONTROLLER: _SHOAL,
            "HOROVOD_RANK": str(launch.rank),
            "HOROVOD_SIZE": str(launch.size),
            "HOROVOD_LOCAL_RANK": str(launch.local_rank),
            "HOROVOD_LOCAL_SIZE": str(launch.local_size),
        }
    )


def timeline(environ: Mapping[str, str] = os.environ) -> Timeline | None:
    """What HOROVOD_TIMELINE says. None: no timeline from the start; ``DYNAMIC`` leaves it to ``start_timeline``."""
    path = environ.get("HOROVOD_TIMELINE", "")
    if not path or path == "DYNAMIC":
        return None
    return Timeline(path, environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "") not in ("", "0"))


def _name_the_others(environ: Mapping[str, str]) -> None:
    known = {*_SILENT, *_TRANSLATED, *_STALL_CHECKS}
    others = sorted(name for name in environ if name.startswith("HOROVOD_") and name not in known | _named)
    if others:
        _named.update(others)
        _log.warning("these variables of Horovod's mean nothing to Shoal: %s", ", ".join(others))


def _seconds_until_warnings(environ: Mapping[str, str]) -> float:
    if environ.get("HOROVOD_STALL_CHECK_DISABLE", "") not in ("", "0"):
        return math.inf
    text = environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS")
    return 0.0 if text is None else _number("HOROVOD_STALL_CHECK_TIME_SECONDS", text, "a number of seconds")


def _check_launcher(environ: Mapping[str, str]) -> None:
    said = environ.get("HOROVOD_RANK", ""), environ.get("HOROVOD_SIZE", "")
    # What tell_rank has set may be that of the program that has started this one.
    if environ.get(_CONTROLLER) == _SHOAL or not all(text.isdigit() for text in said):
        return
    launch = read_launch(environ)
    if (launch.rank, launch.size) != (int(said[0]), int(said[1])):
        raise ConfigurationError(
            f"HOROVOD_RANK={said[0]} and HOROVOD_SIZE={said[1]} are set, as horovodrun does, but to Shoal this is rank {launch.rank} of "
            f"{launch.size}: start the ranks with shoal run -np {said[1]}, torchrun, mpirun or srun"
        )


def _bytes_to_mb(name: str, text: str) -> str | None:
    size = _number(name, text, "a number of bytes")
    return f"{size / 1e6:g}" if size > 0 else None


def _level(name: str, text: str) -> str:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise ConfigurationError(f"{name}={text!r} is wrong: expected {', '.join(_LEVELS)}")
    return level


def _seconds(name: str, text: str) -> str | None:
    seconds = _number(name, text, "a number of seconds")
    return f"{seconds:g}" if seconds > 0 else None


def _as_it_is(name: str, text: str) -> str | None:
    return text or None


def _number(name: str, text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is wrong: expected {expected}") from None


_TRANSLATED: dict[str, tuple[str, Callable[[str, str], str | None]]] = {
    "HOROVOD_FUSION_THRESHOLD": ("SHOAL_FUSION_MB", _bytes_to_mb),
    "HOROVOD_LOG_LEVEL": ("SHOAL_LOG", _level),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("SHOAL_TIMEOUT", _seconds),
    "HOROVOD_GLOO_IFACE": ("SHOAL_INTERFACE", _as_it_is),
}
