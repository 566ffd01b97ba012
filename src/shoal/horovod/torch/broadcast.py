"""Broadcast: one rank's tensor for all, new tensors and in place, waiting and not, with gradients.

``root_rank`` is a rank of the job, also with a process set. ``name`` matches the ranks' calls; None: by their order in
the process set. Errors are those of allreduce.py.
"""

from collections.abc import Callable
from typing import Any

import torch

from shoal.horovod.common import basics, handles
from shoal.horovod.common.handles import Alone
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch import submission
from shoal.horovod.torch.allreduce import allreduce
from shoal.horovod.torch.synchronization import synchronize
from shoal.job.groups import Group
from shoal.ops import operations
from shoal.ops.operations import Plan
from shoal.ops.submissions import Pending


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts ``broadcast``; a handle for ``synchronize``."""
    operation = _begin(submission.anew, tensor, root_rank, name, process_set)
    return handles.hand_out(Alone(operation, lambda result: result))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts ``broadcast_``; a handle for ``synchronize``, which returns the tensor. Until then it must be left alone."""
    operation = begin_(tensor, root_rank, name, process_set)
    return handles.hand_out(Alone(operation, lambda _: tensor))


def begin_(tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Pending:
    """``broadcast_async_`` without a handle."""
    return _begin(submission.in_place, tensor, root_rank, name, process_set)


class HorovodBroadcast(torch.autograd.Function):
    """The gradient of the root's tensor is the mean of the ranks' gradients, as with Horovod; that of the others' is zero."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        averaged = allreduce(grad_output, op=ReduceOp.Average, process_set=ctx.process_set)
        if basics.rank() == ctx.root_rank:
            return averaged, None, None, None
        # Not new zeros: in a second backward pass all ranks have the all-reduce to go through.
        everywhere = torch.ones((), dtype=torch.bool, device=averaged.device)
        return averaged.masked_fill(everywhere, 0), None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """A new tensor with what ``tensor`` is on the root; its shape and dtype are the same on all. Gradients flow through it."""
    return HorovodBroadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Fills the tensor with what it is on the root, and returns it."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def _begin(
    submit: Callable[..., Pending], tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> Pending:
    def plan(group: Group, host: torch.Tensor, in_place: bool) -> Plan:
        return operations.broadcast(group, host, root_rank, in_place)

    return submit("broadcast", name, process_set.group, tensor, plan, reads=basics.rank() == root_rank)
