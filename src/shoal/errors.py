"""What can go wrong, as users see it.

Every message says what happened, on which rank and host, to which tensor, and what to do next. The native core reports
a status, a rank and a text (docs/protocol/format.md, Numbers); ``error_from_status`` makes the exception from them.
"""

from collections.abc import Sequence

# Statuses of the native core: docs/protocol/format.md, Numbers.
OK = 0
MISMATCH = 1
PEER_LOST = 2
TIMEOUT = 3
PEER_LEFT = 4
LIMIT = 5
PROTOCOL = 6
FAILED_ON_RANK = 7
ABORTED = 8
CANCELLED = 9


class ShoalError(RuntimeError):
    """Anything that Shoal reports."""


class PeerLost(ShoalError, ConnectionError):
    """A rank or server that is needed is gone, or has left.

    ``rank``: which, -1 if it is not a rank (a dedicated server). ``host``: the name of its machine, "" if not known.
    """

    def __init__(self, message: str, rank: int = -1, host: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host

    def __reduce__(self) -> tuple[type["PeerLost"], tuple[str, int, str]]:
        return PeerLost, (str(self), self.rank, self.host)


class Mismatch(ShoalError):
    """Ranks called the same operation with different shapes, dtypes, operators, roots or scales."""


class Timeout(ShoalError, TimeoutError):
    """No progress for as long as was allowed. The message names who is missing."""


class AuthenticationError(ShoalError):
    """A peer does not hold the job's secret, or what answered is not Shoal."""


class ConfigurationError(ShoalError):
    """A setting is missing, malformed, or differs between ranks."""


_BY_STATUS: dict[int, type[ShoalError]] = {MISMATCH: Mismatch, TIMEOUT: Timeout}

_BY_NAME: dict[str, type[ShoalError]] = {
    kind.__name__: kind for kind in (ShoalError, PeerLost, Mismatch, Timeout, AuthenticationError, ConfigurationError)
}


def error_from_status(code: int, rank: int, message: str, hosts: Sequence[str] = ()) -> ShoalError:
    """The exception for a native status.

    ``code``: docs/protocol/format.md, Numbers, not 0. ``rank``: the rank that it is about, -1 if none. ``hosts``: the
    host of each rank, by rank. A code that this version does not know becomes a ShoalError that names it.
    """
    if code == OK:
        raise ValueError("status 0 is no error")
    if code in (PEER_LOST, PEER_LEFT):
        return PeerLost(message, rank, hosts[rank] if 0 <= rank < len(hosts) else "")
    if code > CANCELLED:
        return ShoalError(f"{message} (status {code})")
    return _BY_STATUS.get(code, ShoalError)(message)


def error_from_name(name: str, message: str, rank: int = -1, host: str = "") -> ShoalError:
    """The exception that another process named in ``refused``. A name that is not one of ours becomes a ShoalError."""
    kind = _BY_NAME.get(name, ShoalError)
    return PeerLost(message, rank, host) if kind is PeerLost else kind(message)


def name_of(error: ShoalError) -> str:
    """The public class of an error, as it is named to other processes."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _BY_NAME)
