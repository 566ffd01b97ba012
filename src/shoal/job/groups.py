"""Groups: ordered subsets of the job's ranks that communicate together.

Making a group is not collective: its identity is its members, its name, and how often this pair was made before. So
members that make the same groups in the same order have the same ones.
"""

import operator
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any

from shoal.assembly.terms import rank_name
from shoal.errors import ShoalError
from shoal.job import runtime
from shoal.job.per_job import PerJob

if TYPE_CHECKING:
    from shoal.job.bootstrap import Session


class Group:
    """Some of the job's ranks, in an order.

    ``ranks``: the members; each once, each a rank of the job. Chunks, blocks and splits follow their order.
    ``name``: tells apart groups with the same members that are not made in the same order everywhere.
    ``timeout``: seconds without progress after which an operation of the group fails; default SHOAL_TIMEOUT.

    Belongs to the job that was initialised when it was made. Operations without a name are matched by the order in
    which each member calls them, so they come from one thread.

    Raises TypeError for an argument of another kind, ValueError for ranks that are none of the job's or come twice and
    for a timeout that is not above 0, ShoalError before ``shoal.init()``.
    """

    def __init__(self, ranks: Iterable[int], name: str = "", timeout: float | None = None) -> None:
        session = runtime.current()
        where = f"on {rank_name(session.rank, session.hosts)}"
        members = _members(ranks, session.size, where)
        if not isinstance(name, str):
            raise TypeError(f"name must be a text, got {_given(name)} {where}: leave it out for a group without one")
        seconds = None if timeout is None else _seconds(timeout, where)
        number = _make(session, members, name) if session.rank in members else None
        twins = _made.of(session)
        earlier = twins.get((members, name), 0)
        twins[members, name] = earlier + 1
        self._fill(session, members, name, seconds, number, f"{list(members)} {name} {earlier}")

    def _fill(
        self,
        session: "Session",
        members: tuple[int, ...],
        name: str,
        timeout: float | None,
        number: int | None,
        identity: str,
    ) -> None:
        # Not by way of a property, since every operation reads them.
        self.session = session
        """The job that the group belongs to."""
        self.timeout = session.settings.timeout if timeout is None else timeout
        """Seconds without progress after which an operation fails."""
        self.identity = identity
        """The same on all members, and of no other group of the job's; "" for all ranks."""
        self._members = members
        self._name = name
        self._number = number

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members: ranks of the job, in the group's order."""
        return self._members

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._members)

    @property
    def rank(self) -> int | None:
        """This process's index among the members, None if it is not one."""
        rank = self.session.rank
        return self._members.index(rank) if rank in self._members else None

    @property
    def name(self) -> str:
        return self._name

    @property
    def number(self) -> int:
        """The engine's number of the group. Raises ValueError on a rank that is not a member."""
        if self._number is None:
            raise ValueError(
                f"rank {self.session.rank} is not a member of {self}: only members may call its operations"
            )
        return self._number

    def __repr__(self) -> str:
        name = f", name={self._name!r}" if self._name else ""
        return f"Group({list(self._members)}{name})"


def world() -> Group:
    """The group of all ranks of the current job. Raises ShoalError before ``shoal.init()``."""
    return _world.of(runtime.current())


def _make_world(session: "Session") -> Group:
    everyone = Group.__new__(Group)
    everyone._fill(session, tuple(range(session.size)), "", None, 0, "")
    return everyone


_world = PerJob(_make_world)


def _make_table(_: "Session") -> dict[tuple[tuple[int, ...], str], int]:
    return {}


# How many groups of these members and name were made.
_made = PerJob(_make_table)


def _make(session: "Session", members: tuple[int, ...], name: str) -> int:
    try:
        return session.engine.make_group(list(members), name)
    except RuntimeError as error:
        raise ShoalError(f"no group can be made on {rank_name(session.rank, session.hosts)}: {error}") from error


def _members(ranks: Iterable[int], size: int, where: str) -> tuple[int, ...]:
    """The ranks as numbers. ``where``: this rank, for messages."""
    try:
        members = tuple(operator.index(rank) for rank in ranks)
    except TypeError as error:
        raise TypeError(
            f"ranks must be the numbers of the members, got {_given(ranks)} {where}: pass a list, as in "
            "shoal.Group([0, 1])"
        ) from error
    if not members:
        raise ValueError(f"a group needs at least one rank, got none {where}")
    for rank in members:
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} of a group made {where} is none of this job's, which are 0 to {size - 1}")
    if len(set(members)) != len(members):
        raise ValueError(f"a group has each rank once, got {list(members)} {where}")
    return members


def _seconds(timeout: Any, where: str) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(
            f"timeout must be a number of seconds, got {_given(timeout)} {where}: leave it out for SHOAL_TIMEOUT"
        )
    seconds = float(timeout)
    if not seconds > 0:
        raise ValueError(f"timeout must be above 0 seconds, got {timeout} {where}: leave it out for SHOAL_TIMEOUT")
    return seconds


def _given(value: Any) -> str:
    return f"{value!r}, of type {type(value).__name__},"
