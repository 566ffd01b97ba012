"""Connections that were not let in, counted by reason and logged so that no stranger can fill the log.

The first of each reason is logged, then the 2nd, 4th, 8th and so on, with the count. Refused callers that speak Shoal's
protocol are a warning, since somebody has set something wrong; port scans and other noise are not.
"""

import asyncio
import logging
from collections import Counter

from shoal.net.handshake import HandshakeRefused
from shoal.net.messages import MessageError

_log = logging.getLogger("shoal")

NOT_SHOAL = "not_shoal"
BAD_MESSAGE = "bad_message"
SILENT = "silent"
GONE = "gone"


class Rejections:
    """``where``: who refuses, as the log shall say it. Belongs to one thread."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        """By reason: ``wrong_secret``, ``wrong_version`` and the other names of handshake.Refusal in lower case;
        ``not_shoal``: bytes of another protocol; ``bad_message``; ``silent``: nothing in time; ``gone``: closed too early.
        """
        return dict(self._counts)

    def note(self, caller: str, error: Exception) -> None:
        """One connection, from the address ``caller``, was dropped for this."""
        reason = _reason(error)
        count = self._counts[reason] + 1
        speaks_shoal = isinstance(error, HandshakeRefused) and error.refusal is not None
        if count & (count - 1) == 0:
            level = logging.WARNING if speaks_shoal else logging.INFO
            what = str(error) or "nothing came in time"
            _log.log(level, "%s refused a connection from %s: %s (%s: %d)", self._where, caller, what, reason, count)
        self._counts[reason] = count


def _reason(error: Exception) -> str:
    if isinstance(error, HandshakeRefused):
        return NOT_SHOAL if error.refusal is None else error.refusal.name.lower()
    if isinstance(error, MessageError):
        return BAD_MESSAGE
    # Until Python 3.11, asyncio's is not the other one.
    return SILENT if isinstance(error, TimeoutError | asyncio.TimeoutError) else GONE
