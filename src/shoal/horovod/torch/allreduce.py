"""All-reduce in all forms: new tensors and in place, waiting and not, grouped, with gradients.

Arguments that all forms have:

    average: instead of ``op``, of older scripts: True is Average, False is Sum.
    name: matches the ranks' calls. None: calls without a name are matched by their order in the process set.
    op: Average (the default), Sum, Min, Max, Product, or Adasum (floating dtypes, 2, 4, 8 ... ranks).
    prescale_factor, postscale_factor: of the tensor before, of the result after. Integers are scaled in float64 and cut
        toward zero (scaling.py).
    process_set: the ranks that take part.

All raise ValueError for wrong arguments, a name that is still in flight, and before ``init``; UnsupportedTensorError for a
tensor of another dtype or layout; HorovodInternalError when the operation fails, such as for tensors that differ between
ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.horovod.common import handles
from shoal.horovod.common.averages import check_adasum, factor_after, operator_for
from shoal.horovod.common.compression import compressed
from shoal.horovod.common.handles import Alone, Together
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.common.util import chosen_operator
from shoal.horovod.torch import submission
from shoal.horovod.torch.compression import Compression
from shoal.horovod.torch.scaling import scale_, scaled
from shoal.horovod.torch.synchronization import synchronize
from shoal.job.groups import Group
from shoal.ops import operations
from shoal.ops.operations import Plan
from shoal.ops.submissions import Pending

# Makes the caller's tensor of what an operation has given.
Finish = Callable[[Any], torch.Tensor]

# A tensor times a factor.
Scale = Callable[[torch.Tensor, float], torch.Tensor]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts to combine the ranks' tensors elementwise into a new one; a handle for ``synchronize``."""
    reduction = Reduction(chosen_operator(op, average), prescale_factor, postscale_factor, process_set)
    return handles.hand_out(Alone(*reduction.start(tensor, name)))


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts ``allreduce_``; a handle for ``synchronize``, which returns the tensor. Until then it must be left alone."""
    reduction = Reduction(chosen_operator(op, average), prescale_factor, postscale_factor, process_set)
    return handles.hand_out(reduction.begin_(tensor, name))


class HorovodAllreduce(torch.autograd.Function):
    """The gradient of a reduced tensor is reduced in the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> Any:
        operator = chosen_operator(op, average)
        ctx.arguments = (None, None, operator, prescale_factor, postscale_factor, process_set)
        return synchronize(
            allreduce_async(tensor, None, name, operator, prescale_factor, postscale_factor, process_set)
        )

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return HorovodAllreduce.apply(grad_output, *ctx.arguments), None, None, None, None, None, None  # type: ignore[no-untyped-call]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The ranks' tensors combined elementwise: a new tensor of the shape, dtype and device of ``tensor``.

    Gradients flow through it. ``compression``: how it travels, one of ``Compression``.
    """
    travelling, context = compression.compress(tensor)
    reduced = HorovodAllreduce.apply(travelling, average, name, op, prescale_factor, postscale_factor, process_set)  # type: ignore[no-untyped-call]
    return compression.decompress(reduced, context)  # type: ignore[no-any-return]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Fills the tensor with the ranks' tensors combined elementwise, and returns it. After an error it is unspecified."""
    reduced: torch.Tensor = synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return reduced


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts ``grouped_allreduce``; one handle for all, for which ``synchronize`` returns a tuple."""
    reduction = Reduction(chosen_operator(op, average), prescale_factor, postscale_factor, process_set)
    return start_group(tensors, name, reduction.start)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts ``grouped_allreduce_``; one handle for all, for which ``synchronize`` returns the tensors in a tuple."""
    reduction = Reduction(chosen_operator(op, average), prescale_factor, postscale_factor, process_set)
    return start_group(tensors, name, reduction.start_)


class HorovodGroupedAllreduce(torch.autograd.Function):
    """The gradients of reduced tensors are reduced in the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> Any:
        operator = chosen_operator(op, average)
        ctx.arguments = (None, None, operator, prescale_factor, postscale_factor, process_set)
        return synchronize(
            grouped_allreduce_async(tensors, None, name, operator, prescale_factor, postscale_factor, process_set)
        )

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> Any:
        reduced = HorovodGroupedAllreduce.apply(*ctx.arguments, *grad_output)  # type: ignore[no-untyped-call]
        return (None, None, None, None, None, None, *reduced)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``allreduce`` of each of the tensors, all in flight at once. The ranks' lists have the same shapes and dtypes."""

    def reduced(travelling: list[torch.Tensor]) -> Any:
        return HorovodGroupedAllreduce.apply(  # type: ignore[no-untyped-call]
            average, name, op, prescale_factor, postscale_factor, process_set, *travelling
        )

    return compressed(compression, tensors, reduced)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[torch.Tensor]:
    """``allreduce_`` of each of the tensors, all in flight at once. Returns them in a tuple."""
    reduced: Sequence[torch.Tensor] = synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return reduced


def start_group(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    start: Callable[[torch.Tensor, str | None], tuple[Pending, Finish]],
) -> int:
    """One handle for an operation on each tensor. ``name``: that of the group; each operation has its place in it too."""
    count = len(tensors)
    names = [None if name is None else f"{name}_{place}of{count}" for place in range(1, count + 1)]
    started = [start(tensor, its_name) for tensor, its_name in zip(tensors, names, strict=True)]
    finishes = [finish for _, finish in started]

    def finish(results: list[Any]) -> tuple[torch.Tensor, ...]:
        return tuple(finish(result) for finish, result in zip(finishes, results, strict=True))

    return handles.hand_out(Together([operation for operation, _ in started], finish))


class Reduction:
    """How tensors are combined, for one or many of them.

    Raises ValueError if the process set is not of this job, NotImplementedError as ``check_adasum``.
    """

    __slots__ = ("_group", "_op", "_postscale", "_prescale")

    def __init__(self, op: ReduceOp, prescale_factor: float, postscale_factor: float, process_set: ProcessSet) -> None:
        self._group = process_set.group
        self._op = op
        self._prescale = prescale_factor
        self._postscale = postscale_factor
        if op is ReduceOp.Adasum:
            check_adasum(self._group)

    def start(self, tensor: torch.Tensor, name: str | None) -> tuple[Pending, Finish]:
        """Starts an operation whose result is a new tensor."""
        operation = self._submitted(tensor, name, scaled, in_place=False)
        return operation, _Reduced(tensor, self._factor_after(tensor), in_place=False)

    def start_(self, tensor: torch.Tensor, name: str | None) -> tuple[Pending, Finish]:
        """Starts an operation that fills the tensor."""
        operation = self._submitted(tensor, name, scale_, in_place=True)
        copies = self._op is ReduceOp.Adasum and not tensor.is_cpu
        return operation, _Reduced(tensor, self._factor_after(tensor), in_place=True, copies=copies)

    def begin_(self, tensor: torch.Tensor, name: str | None) -> Alone:
        """``allreduce_async_`` without a handle."""
        return Alone(*self.start_(tensor, name))

    def _submitted(self, tensor: torch.Tensor, name: str | None, scale: Scale, in_place: bool) -> Pending:
        factor = self._prescale

        def before(given: torch.Tensor) -> torch.Tensor:
            return scale(given, factor)

        if self._op is ReduceOp.Adasum:
            return submission.adasum(name, self._group, tensor, before, in_place)
        submit = submission.in_place if in_place else submission.anew
        return submit("allreduce", name, self._group, tensor, self._plan, before)

    def _plan(self, group: Group, host: torch.Tensor, in_place: bool) -> Plan:
        return operations.allreduce(group, host, operator_for(self._op, host.dtype.is_floating_point), in_place)

    def _factor_after(self, tensor: torch.Tensor) -> float:
        return factor_after(self._op, tensor.dtype.is_floating_point, self._group, self._postscale)


class _Reduced:
    """The caller's tensor, once there is a result. ``factor``: what that is multiplied by. ``copies``: it is elsewhere."""

    __slots__ = ("_copies", "_factor", "_in_place", "_tensor")

    def __init__(self, tensor: torch.Tensor, factor: float, in_place: bool, copies: bool = False) -> None:
        self._tensor = tensor
        self._factor = factor
        self._in_place = in_place
        self._copies = copies

    def __call__(self, result: torch.Tensor) -> torch.Tensor:
        tensor = self._tensor
        if not self._in_place:
            return scale_(result.to(tensor.device), self._factor)
        if self._copies:
            tensor.detach().copy_(result)
        return scale_(tensor, self._factor)
