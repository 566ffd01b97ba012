"""Reduce-scatter: this rank's rows of the sum or mean, waiting and not, grouped, with gradients.

Tensors have the same shape (rows, ...) on all ranks; the first rows mod ranks of them get one row more. ``op`` is Average
or Sum. The other arguments, and the errors, are those of allreduce.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.horovod.common import handles
from shoal.horovod.common.averages import factor_after, operator_for, scatterable
from shoal.horovod.common.compression import compressed
from shoal.horovod.common.handles import Alone
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.common.util import known_operator
from shoal.horovod.torch import submission
from shoal.horovod.torch.allgather import allgather, grouped_allgather
from shoal.horovod.torch.allreduce import Finish, start_group
from shoal.horovod.torch.compression import Compression
from shoal.horovod.torch.rows import require_rows
from shoal.horovod.torch.scaling import scale_, scaled
from shoal.horovod.torch.synchronization import synchronize
from shoal.job.groups import Group
from shoal.ops import operations
from shoal.ops.operations import Plan
from shoal.ops.submissions import Pending


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = ReduceOp.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts ``reducescatter``; a handle for ``synchronize``."""
    operation, finish = _starter(op, prescale_factor, postscale_factor, process_set)(tensor, name)
    return handles.hand_out(Alone(operation, finish))


class HorovodReducescatter(torch.autograd.Function):
    """The gradients of the ranks' rows are gathered; of a sum they are multiplied by the number of ranks, as with Horovod."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> Any:
        ctx.process_set = process_set
        ctx.factor = _factor_of_gradients(op, process_set, prescale_factor, postscale_factor)
        return synchronize(reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        gathered = allgather(grad_output * ctx.factor, process_set=ctx.process_set)
        return gathered, None, None, None, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = ReduceOp.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the mean or sum of the ranks' tensors: a new tensor. Gradients flow through it."""
    travelling, context = compression.compress(tensor)
    reduced = HorovodReducescatter.apply(travelling, name, op, process_set, prescale_factor, postscale_factor)  # type: ignore[no-untyped-call]
    return compression.decompress(reduced, context)  # type: ignore[no-any-return]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = ReduceOp.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts ``grouped_reducescatter``; one handle for all, for which ``synchronize`` returns a tuple."""
    return start_group(tensors, name, _starter(op, prescale_factor, postscale_factor, process_set))


class HorovodGroupedReducescatter(torch.autograd.Function):
    """As ``HorovodReducescatter``, of each."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.process_set = process_set
        ctx.factor = _factor_of_gradients(op, process_set, prescale_factor, postscale_factor)
        return synchronize(
            grouped_reducescatter_async(tensors, name, op, process_set, prescale_factor, postscale_factor)
        )

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> Any:
        scattered = [gradient * ctx.factor for gradient in grad_output]
        return (None, None, None, None, None, *grouped_allgather(scattered, process_set=ctx.process_set))


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = ReduceOp.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """``reducescatter`` of each of the tensors, all in flight at once."""

    def reduced(travelling: list[torch.Tensor]) -> Any:
        return HorovodGroupedReducescatter.apply(  # type: ignore[no-untyped-call]
            name, op, process_set, prescale_factor, postscale_factor, *travelling
        )

    return compressed(compression, tensors, reduced)


def _starter(
    op: int, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> Callable[[torch.Tensor, str | None], tuple[Pending, Finish]]:
    operator = scatterable(known_operator(op))
    group = process_set.group

    def plan(group: Group, host: torch.Tensor) -> Plan:
        require_rows("reducescatter", host)
        return operations.reducescatter(
            group, host, operator_for(operator, host.dtype.is_floating_point), in_place=False
        )

    def start(tensor: torch.Tensor, name: str | None) -> tuple[Pending, Finish]:
        operation = submission.apart(
            "reducescatter",
            name,
            group,
            tensor,
            plan,
            before=lambda given: scaled(given, prescale_factor),
        )
        after = factor_after(operator, tensor.dtype.is_floating_point, group, postscale_factor)
        device = tensor.device
        return operation, lambda result: scale_(result.to(device), after)

    return start


def _factor_of_gradients(op: int, process_set: ProcessSet, prescale_factor: float, postscale_factor: float) -> float:
    of_sum = process_set.group.size if op == ReduceOp.Sum else 1
    return of_sum * prescale_factor * postscale_factor
