"""All-gather: the ranks' tensors one after the other, waiting and not, grouped, with gradients.

``name`` matches the ranks' calls; None: by their order in the process set. Errors are those of allreduce.py.
"""

from collections.abc import Sequence
from typing import Any

import torch

from shoal.horovod.common import handles
from shoal.horovod.common.handles import Alone, Together
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch import submission
from shoal.horovod.torch.allreduce import grouped_allreduce
from shoal.horovod.torch.rows import plan_by_rows
from shoal.horovod.torch.synchronization import synchronize
from shoal.job.groups import Group
from shoal.ops import operations
from shoal.ops.operations import Plan
from shoal.ops.submissions import Pending


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts ``allgather``; a handle for ``synchronize``."""
    return handles.hand_out(begin(tensor, name, process_set))


def begin(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Alone:
    """``allgather_async`` without a handle."""
    operation = _start(tensor, name, process_set)
    device = tensor.device
    return Alone(operation, lambda result: result.to(device))


class HorovodAllgather(torch.autograd.Function):
    """The gradient of a rank's rows is the mean of what the ranks have for them, as with Horovod."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        gathered = synchronize(allgather_async(tensor, name, process_set))
        ctx.rows = tensor.shape[:1]
        ctx.process_set = process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        (gradient,) = _gradients([grad_output], ctx.rows, ctx.process_set)
        return gradient, None, None


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The ranks' tensors, of shape (rows, ...), one after the other: a new tensor. Gradients flow through it.

    The number of rows may differ between ranks, the other dimensions and the dtype may not.
    """
    return HorovodAllgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts ``grouped_allgather``; one handle for all, for which ``synchronize`` returns a tuple."""
    count = len(tensors)
    started = [
        _start(tensor, None if name is None else f"{name}_{place}of{count}", process_set)
        for place, tensor in enumerate(tensors, start=1)
    ]
    devices = [tensor.device for tensor in tensors]
    return handles.hand_out(
        Together(
            started,
            lambda results: tuple(result.to(device) for result, device in zip(results, devices, strict=True)),
        )
    )


class HorovodGroupedAllgather(torch.autograd.Function):
    """As ``HorovodAllgather``, of each."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        gathered = synchronize(grouped_allgather_async(tensors, name, process_set))
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.process_set = process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> Any:
        return (None, None, *_gradients(grad_output, ctx.rows, ctx.process_set))


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """``allgather`` of each of the tensors, all in flight at once: a tuple."""
    return HorovodGroupedAllgather.apply(name, process_set, *tensors)  # type: ignore[no-untyped-call]


def _start(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Pending:
    def plan(group: Group, host: torch.Tensor) -> Plan:
        return plan_by_rows("allgather", host, lambda given: operations.allgather(group, given))

    return submission.apart("allgather", name, process_set.group, tensor, plan)


def _gradients(gathered: Sequence[torch.Tensor], rows: Sequence[int], process_set: ProcessSet) -> list[torch.Tensor]:
    """This rank's part of each gradient of a gathered tensor, averaged. ``rows``: how many it gave of each."""
    averaged = grouped_allreduce(gathered, op=ReduceOp.Average, process_set=process_set)
    everyones = allgather(torch.tensor([list(rows)], dtype=torch.int64), process_set=process_set)
    begins = everyones[: process_set.group.rank].sum(dim=0).tolist()
    return [mean.narrow(0, begin, count) for mean, begin, count in zip(averaged, begins, rows, strict=True)]
