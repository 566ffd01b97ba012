"""The named operations of one wrapped module in its group.

Every operation has a label, which is unique within the module; its name on the wire is the module's and the label. So
ranks may submit them in whatever order their gradients become ready. Tensors of an accelerator go through memory of the host
(staging.py), in a queue that those on the CPU do not wait in.
"""

from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakKeyDictionary

import torch

from shoal.job import runtime
from shoal.job.bootstrap import Session
from shoal.job.groups import Group
from shoal.ops import collectives, operations
from shoal.ops.handles import Handle
from shoal.torch import accelerators
from shoal.torch.accelerators import Stream
from shoal.torch.submissions import AnyHandle, Submissions

# How many modules each group of a job has wrapped: ranks that wrap the same modules in the same order mean the same ones. Copies
# count by themselves: if one rank trains one alone by mistake, other ranks' wrappers are no concern of that.
_wrapped: WeakKeyDictionary[Session, dict[tuple[str, str, tuple[int, ...]], int]] = WeakKeyDictionary()

# The one group of the copies of wrappers for the same ranks: a rank may have copies that others have not, and make it first.
_of_copies: WeakKeyDictionary[Session, dict[tuple[int, ...], Group]] = WeakKeyDictionary()


def group_of_copies(ranks: tuple[int, ...]) -> Group:
    made = _of_copies.setdefault(runtime.current(), {})
    if ranks not in made:
        made[ranks] = Group(ranks, name="copy")
    return made[ranks]


class NamedOperations:
    """``group``: who takes part. ``of_copy``: of a copy of a wrapper. Raises ValueError on a rank that does not take part."""

    def __init__(self, group: Group, of_copy: bool = False) -> None:
        if group.rank is None:
            raise ValueError(f"this rank is not a member of {group}: wrap the module on the group's members only")
        counts = _wrapped.setdefault(group.session, {})
        kind = "copy" if of_copy else "ddp"
        number = counts.get((kind, group.name, group.ranks), 0)
        counts[kind, group.name, group.ranks] = number + 1
        self.group = group
        self._prefix = f"{kind}{number}"
        self._submissions = Submissions()

    @property
    def is_root(self) -> bool:
        """Whether this is the group's first member, whose word counts where one has to be chosen."""
        return self.group.rank == 0

    @property
    def here(self) -> str:
        """This rank, for messages."""
        session = self.group.session
        return f"rank {session.rank} ({session.hosts[session.rank]})"

    def member(self, index: int) -> str:
        """Another member, for messages."""
        rank = self.group.ranks[index]
        return f"rank {rank} ({self.group.session.hosts[rank]})"

    def allreduce(self, label: str, memory: torch.Tensor, op: str) -> Handle:
        """Starts an all-reduce in place of memory of the host."""
        return collectives.allreduce_async_(memory, op, self._name(label), self.group)

    def allreduce_through(
        self, host: torch.Tensor, label: str, memory: torch.Tensor, op: str, made_in: Iterable[Stream]
    ) -> AnyHandle:
        """Starts an all-reduce in place of memory of an accelerator, which goes through pinned memory of the same shape.

        ``made_in``: the streams in which the values are made, beside the current one.
        """
        device = accelerators.of([memory])
        assert device is not None, "memory of the host goes nowhere"
        transfer = self._submissions.transfer(device)
        transfer.follow_streams(made_in)
        transfer.bring(host, memory)
        return self._submissions.submit(
            "allreduce_",
            self._name(label),
            self.group,
            lambda group: operations.allreduce(group, host, op, in_place=True).then(
                lambda: transfer.take_back(memory, host)
            ),
            None,
            transfer,
        )

    def broadcast(self, label: str, memory: torch.Tensor, root: int = 0) -> AnyHandle:
        """Starts a broadcast in place, from the group's member ``root``."""
        device = accelerators.of([memory])
        source = self.group.ranks[root]
        if device is None:
            return collectives.broadcast_async_(memory, source, self._name(label), self.group)
        transfer = self._submissions.transfer(device)
        staged = transfer.mirror(memory, read=self.group.rank == root)
        return self._submissions.submit(
            "broadcast_",
            self._name(label),
            self.group,
            lambda group: operations.broadcast(group, staged, source, in_place=True).then(
                lambda: transfer.take_back(memory, staged)
            ),
            None,
            transfer,
        )

    def allgather(self, label: str, memory: torch.Tensor) -> torch.Tensor:
        """The members' one-dimensional tensors one after the other."""
        result: torch.Tensor = collectives.allgather(memory, self._name(label), self.group)
        return result

    def fail(self, label: str, reason: str) -> None:
        """Tells the other members that this rank cannot take part. Does nothing if the job has ended."""
        with suppress(RuntimeError):
            collectives.fail(reason, self._name(label), self.group)

    def _name(self, label: str) -> str:
        return f"{self._prefix}.{label}"
