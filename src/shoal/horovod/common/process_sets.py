"""Process sets: sets of ranks that operations can be limited to. One is a ``shoal.Group`` with a number.

Making one sends nothing, other than with Horovod: every rank makes the same sets in the same order, members or not.
"""

from collections.abc import Iterable
from typing import Any

from shoal.horovod.common.exceptions import InvalidCallError
from shoal.job import runtime
from shoal.job.groups import Group, world
from shoal.job.per_job import PerJob


class _Table:
    """The process sets of one job: number → ranks. Groups are kept for ranks that are registered again."""

    def __init__(self, size: int) -> None:
        self.ranks: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.groups: dict[tuple[int, ...], Group] = {self.ranks[0]: world()}

    def number_of(self, ranks: tuple[int, ...]) -> int | None:
        return next((number for number, those in self.ranks.items() if those == ranks), None)

    def register(self, ranks: tuple[int, ...]) -> int:
        """Raises ValueError for ranks that are none of the job's, or come twice."""
        if ranks not in self.groups:
            self.groups[ranks] = Group(ranks, name="process set")
        # As with Horovod the first that is free, also one of a set that was removed.
        number = next(number for number in range(len(self.ranks) + 1) if number not in self.ranks)
        self.ranks[number] = ranks
        return number


_tables: PerJob[_Table] = PerJob(lambda session: _Table(session.size))


def table() -> _Table:
    """The present job's. Raises InvalidCallError before ``init``, as everything does here."""
    if not runtime.is_initialized():
        runtime.refuse_in_child()
        raise InvalidCallError("this process has joined no job: call hvd.init() first")
    return _tables.of(runtime.current())


class ProcessSet:
    """Ranks that carry out operations together, once ``init`` or ``add_process_set`` has been given it.

    ``ranks``: numbers of ranks, in any order; they are sorted. ``process_set_id``: its number in the job; None before and
    after. Raises ValueError for what is no list of numbers: there are no MPI communicators here.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        try:
            ranks = sorted(ranks_or_comm)
        except TypeError:
            raise ValueError(
                f"a process set is made of a list of ranks, got {ranks_or_comm!r}: MPI communicators mean nothing here, so pass "
                "comm.group's ranks"
            ) from None
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError(f"a process set is made of a list of ranks, got {ranks_or_comm!r}")
        self.ranks = ranks

    def size(self) -> int | None:
        """How many ranks it has. None if it is not registered."""
        return None if self.process_set_id is None else self.group.size

    def rank(self) -> int | None:
        """This rank's index in it. None if it is not registered. Raises ValueError if this rank is not in it."""
        if self.process_set_id is None:
            return None
        index = self.group.rank
        if index is None:
            raise ValueError(f"rank {runtime.rank()} is not in {self}")
        return index

    def included(self) -> bool | None:
        """Whether this rank is in it. None for the global one before ``init``."""
        if not self.ranks:
            return None
        table()  # refuses before init
        return runtime.rank() in self.ranks

    @property
    def group(self) -> Group:
        """Raises ValueError if it is not registered in the present job."""
        ranks = self.registered_ranks()
        if ranks is None:
            raise ValueError(f"{self} is not registered in this job: pass it to hvd.init() or hvd.add_process_set()")
        return table().groups[ranks]

    def registered_ranks(self) -> tuple[int, ...] | None:
        """Its ranks in the present job; None if it is not registered there. Its number may be one of an earlier job."""
        registered, number = table().ranks, self.process_set_id
        ranks = None if number is None else registered.get(number)
        return ranks if number == 0 or ranks == tuple(self.ranks or ()) else None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __str__ = __repr__


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def register_at_init(process_sets: list[ProcessSet]) -> None:
    """After the job was joined. Raises ValueError if two of them, or one and the global one, have the same ranks."""
    registered = table()
    global_process_set.ranks = list(registered.ranks[0])
    seen = {registered.ranks[0]}
    twice = []
    for process_set in process_sets:
        ranks = tuple(process_set.ranks or ())
        if ranks in seen:
            process_set.process_set_id = None
            twice.append(str(process_set))
            continue
        seen.add(ranks)
        number = registered.number_of(ranks)
        process_set.process_set_id = registered.register(ranks) if number is None else number
    if twice:
        raise ValueError(f"other process sets have the same ranks as {', '.join(twice)}: give each set of ranks once")


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a process set, or one of these ranks, while the job runs, and returns it. Every rank calls it.

    Raises ValueError if there is one with these ranks, if they are none of the job's, and before ``init``.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    registered = table()
    ranks = tuple(made.ranks or ())
    if registered.number_of(ranks) is not None:
        raise ValueError(f"there is a process set of ranks {list(ranks)} already: use that, or remove it first")
    made.process_set_id = registered.register(ranks)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a process set out of the job, on every rank. False if it is not registered, or the global one."""
    number = process_set.process_set_id
    if not number:
        return False
    is_registered = process_set.registered_ranks() is not None
    process_set.process_set_id = None
    if is_registered:
        del table().ranks[number]
    return is_registered
