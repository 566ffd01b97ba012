"""The named operations of one wrapped model in its group.

Every operation has a label, which is unique within the model; its name on the wire is the model's and the label. So
ranks may submit them in whatever order their gradients become ready. Arrays are those of ``shoal.ops.arrays``, in
memory of the host.
"""

from contextlib import suppress
from typing import Any

from shoal.assembly.terms import rank_name
from shoal.job import runtime
from shoal.job.groups import Group
from shoal.job.per_job import PerJob
from shoal.ops import collectives
from shoal.ops.handles import Handle
from shoal.ops.submissions import AnyHandle

# How many models each group of a job has wrapped: ranks that wrap the same models in the same order mean the same ones.
# Copies count by themselves: if one rank trains one alone by mistake, other ranks' wrappers are no concern of that.
_wrapped: PerJob[dict[tuple[str, str, tuple[int, ...]], int]] = PerJob(lambda _: {})

# The one group of the copies of wrappers for the same ranks: a rank may have copies that others have not, and make it
# first.
_of_copies: PerJob[dict[tuple[int, ...], Group]] = PerJob(lambda _: {})


def group_of_copies(ranks: tuple[int, ...]) -> Group:
    made = _of_copies.of(runtime.current())
    if ranks not in made:
        made[ranks] = Group(ranks, name="copy")
    return made[ranks]


class NamedOperations:
    """``group``: who takes part. ``of_copy``: of a copy of a wrapper. ``prefix``: of names, where something other than the order
    in which they are made says which ones are the same. Raises ValueError on any other rank."""

    def __init__(self, group: Group, of_copy: bool = False, prefix: str | None = None) -> None:
        if group.rank is None:
            raise ValueError(f"this rank is not a member of {group}: wrap the module on the group's members only")
        self.group = group
        if prefix is not None:
            self._prefix = prefix
            return
        counts = _wrapped.of(group.session)
        kind = "copy" if of_copy else "ddp"
        number = counts.get((kind, group.name, group.ranks), 0)
        counts[kind, group.name, group.ranks] = number + 1
        self._prefix = f"{kind}{number}"

    @property
    def here(self) -> str:
        """This rank, for messages."""
        session = self.group.session
        return rank_name(session.rank, session.hosts)

    def member(self, index: int) -> str:
        """Another member, for messages."""
        return rank_name(self.group.ranks[index], self.group.session.hosts)

    def allreduce(self, label: str, array: Any, op: str) -> Handle:
        """Starts an all-reduce in place."""
        return collectives.allreduce_async_(array, op, self.name(label), self.group)

    def broadcast(self, label: str, array: Any, root: int = 0) -> AnyHandle:
        """Starts a broadcast in place, from the group's member ``root``."""
        return collectives.broadcast_async_(array, self.group.ranks[root], self.name(label), self.group)

    def allgather(self, label: str, array: Any) -> Any:
        """The members' one-dimensional arrays one after the other."""
        return collectives.allgather(array, self.name(label), self.group)

    def fail(self, label: str, reason: str) -> None:
        """Tells the other members that this rank cannot take part. Does nothing if the job has ended."""
        with suppress(RuntimeError):
            collectives.fail(reason, self.name(label), self.group)

    def name(self, label: str) -> str:
        """On the wire."""
        return f"{self._prefix}.{label}"
