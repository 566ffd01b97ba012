"""All-to-all: each rank has rows for each, waiting and not, with gradients.

``name`` matches the ranks' calls; None: by their order in the process set. Errors are those of allreduce.py; ``splits``
that do not fit to the tensor are a ValueError.
"""

from collections.abc import Sequence
from typing import Any

import torch

from shoal import _native
from shoal.horovod.common import handles
from shoal.horovod.common.handles import Alone
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch import submission
from shoal.horovod.torch.rows import plan_by_rows
from shoal.horovod.torch.synchronization import synchronize
from shoal.job.groups import Group
from shoal.ops import operations
from shoal.ops.operations import Plan

Splits = torch.Tensor | Sequence[int] | None


def alltoall_async(
    tensor: torch.Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts ``alltoall``; a handle, for which ``synchronize`` returns the tensor and how many rows came from each."""
    of_splits = (
        (splits.dtype, splits.device) if isinstance(splits, torch.Tensor) else (torch.int32, torch.device("cpu"))
    )

    def plan(group: Group, host: torch.Tensor) -> Plan:
        counts = _counts(splits)

        def of_rows(given: torch.Tensor) -> Plan:
            sent = given if counts is None else _sent(given, counts, group)
            return operations.alltoall(group, sent, counts, in_place=False)

        planned = plan_by_rows("alltoall", host, of_rows)

        def finish(handle: _native.Handle) -> Any:
            return planned.finish(handle), [block // planned.row_bytes for block in handle.blocks()]

        return planned._replace(finish=finish)

    def results(of_operation: tuple[torch.Tensor, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        rows, counts = of_operation
        return rows.to(device), torch.tensor(counts, dtype=of_splits[0], device=of_splits[1])

    operation = submission.apart("alltoall", name, process_set.group, tensor, plan)
    device = tensor.device
    return handles.hand_out(Alone(operation, results))


class HorovodAlltoall(torch.autograd.Function):
    """The gradients go back the way that the rows came."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Splits, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set = process_set
        ctx.received = received
        ctx.shape = tensor.shape
        if splits is None:
            return output
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, *_: Any) -> Any:
        gradient, _ = alltoall(grad_output, splits=ctx.received, process_set=ctx.process_set)
        unsent = ctx.shape[0] - len(gradient)
        if unsent:
            gradient = torch.cat([gradient, gradient.new_zeros((unsent, *ctx.shape[1:]))])
        return gradient, None, None, None


def alltoall(
    tensor: torch.Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The rows, of shape (rows, ...), that the ranks have for this one, one rank after the other. Gradients flow through it.

    ``splits``: how many of this rank's rows go to each rank; rows beyond their sum go to none. With it a second tensor tells
    how many came from each. Without it each gets the same number.
    """
    return HorovodAlltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]


def _counts(splits: Splits) -> list[int] | None:
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        if splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool:
            raise ValueError(f"splits are numbers of rows, in integers, got {splits.dtype}")
        return list(splits.tolist())
    return list(splits)


def _sent(given: torch.Tensor, counts: list[int], group: Group) -> torch.Tensor:
    """The rows that ``counts`` give away: the first ones. Counts that make no sense are left to the operation to refuse."""
    sent = sum(counts)
    return given[:sent] if len(counts) == group.size and 0 <= sent < len(given) else given
