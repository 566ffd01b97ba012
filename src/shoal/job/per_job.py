"""What other modules keep for each job, as long as the job's session is there.

It lies on the session itself. A table by session elsewhere would never be rid of one, weak as its keys may be: what is
kept is mostly a group, which holds its session.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from shoal.job.session import Session

_T = TypeVar("_T")


class Kept:
    """All that is kept for one job. ``making``: held by whoever adds to it, so that nothing is made twice."""

    __slots__ = ("making", "values")

    def __init__(self) -> None:
        self.values: dict[object, Any] = {}
        self.making = threading.RLock()


class PerJob(Generic[_T]):
    """One value for each job. ``make``: makes that of a session, the first time that it is asked for."""

    def __init__(self, make: "Callable[[Session], _T]") -> None:
        self._make = make

    def of(self, session: "Session") -> _T:
        """The value of that job. May be called from any thread. Raises what ``make`` raises."""
        kept = session.kept
        found: _T
        try:
            found = kept.values[self]
        except KeyError:
            with kept.making:
                if self not in kept.values:
                    kept.values[self] = self._make(session)
                found = kept.values[self]
        return found
