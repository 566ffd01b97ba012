"""Reductions: PyTorch's operators on tensors, as plans of Shoal's.

Shoal adds, averages, multiplies and compares. The bitwise operators are not among its own: the members exchange their elements
whole, and each puts them together itself. That is n times the bytes, of flags mostly.

Means of integers are what NCCL gives: the sum, which wraps, divided toward zero. So is bool: a sum is "any", a product "all".
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import ReduceOp

from shoal.errors import Mismatch
from shoal.job.groups import Group
from shoal.ops import arrays, operations
from shoal.ops.operations import Plan
from shoal.ops.storages import put
from shoal.torch.c10d import packets
from shoal.torch.c10d.tensors import Flat, apart
from shoal.torch.known_dtypes import NUMBERS

_NATIVE = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PREMUL_SUM: "sum",
}
_PREMUL_SUM = ReduceOp.PREMUL_SUM.value
_OF_BOOL = {**_NATIVE, ReduceOp.SUM: "max", ReduceOp.BAND: "min", ReduceOp.BOR: "max"}
_OF_COMPLEX = {ReduceOp.SUM: "sum", ReduceOp.AVG: "mean"}

# By their numbers in what members exchange.
_BITWISE: dict[Any, tuple[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    ReduceOp.BAND: (1, torch.bitwise_and),
    ReduceOp.BOR: (2, torch.bitwise_or),
    ReduceOp.BXOR: (3, torch.bitwise_xor),
}
_BITWISE_NAMES = {number: str(op).rpartition(".")[2] for op, (number, _) in _BITWISE.items()}


class Operator(NamedTuple):
    """``native``: Shoal's name of it, None if the members do it themselves. ``factor``: of this member's elements."""

    op: Any
    native: str | None
    factor: Any = None

    @property
    def exchanges(self) -> bool:
        """Whether elements are needed as soon as it is called."""
        return self.native is None or self.factor is not None


def operator_of(tensors: Sequence[torch.Tensor], op: Any) -> Operator:
    """How the operator is done on tensors of this dtype. Raises TypeError where it has no meaning."""
    kind = getattr(op, "op", op)
    tensor = tensors[0]
    if tensor.layout != torch.strided:
        raise TypeError(f"{_name_of(kind)} of a tensor with layout {tensor.layout}: pass tensor.to_dense()")
    number = int(kind)
    operator = _operator_on(number, tensor.dtype)
    return operator._replace(factor=op.factor) if number == _PREMUL_SUM else operator


# Once for each, since it is a tenth of what a small operation costs: PyTorch's operators are slow to compare and to name.
@functools.cache
def _operator_on(number: int, dtype: torch.dtype) -> Operator:
    """The operator with this number on elements of that dtype, without its factor."""
    kind = ReduceOp.RedOpType(number)
    name = _name_of(kind)
    if (dtype not in NUMBERS and not dtype.is_complex) or dtype == torch.complex32:
        raise TypeError(f"{dtype} can be copied between ranks, but has no {name} here: convert it before")
    if dtype.is_complex:
        found = _OF_COMPLEX.get(kind)
    elif dtype == torch.bool:
        found = None if kind in (ReduceOp.AVG, ReduceOp.PREMUL_SUM) else _OF_BOOL.get(kind)
    else:
        found = _NATIVE.get(kind)
    if found is None and not (kind in _BITWISE and not dtype.is_floating_point and not dtype.is_complex):
        raise TypeError(f"{dtype} has no {name}: convert it before, or choose another operator")
    if kind == ReduceOp.PREMUL_SUM and not dtype.is_floating_point:
        raise TypeError(f"{dtype} has no {name}: it is for floating numbers")
    return Operator(kind, found)


def _name_of(kind: Any) -> str:
    return str(kind).rpartition(".")[2]


def allreduce(group: Group, flat: Flat, operator: Operator) -> Plan:
    """In the elements' own memory, which goes back to their tensor."""
    if operator.native is None:
        return flat.filled_by(_exchanged(group, flat.elements, operator))
    return flat.filled_by(_natively(group, flat.elements, flat.elements, operator))


def reduce(group: Group, flat: Flat, operator: Operator, root: int) -> Plan:
    """``root``: an index into the group, whose tensor gets the result. The others' tensors stay as they are."""
    here = group.rank == root
    # What a tensor of an accelerator has is in memory of its own anyway.
    output = flat.elements if here or flat.is_apart else torch.empty_like(flat.elements)
    if operator.native is None:
        plan = _exchanged(group, flat.elements, operator, output)
    else:
        plan = _natively(group, flat.elements, output, operator)
    plan = plan._replace(root=root)
    return flat.filled_by(plan) if here else flat.left_by(plan)


def reduce_scatter(group: Group, elements: torch.Tensor, flat: Flat, operator: Operator) -> Plan:
    """This member's part of the reduced elements, all parts of one size, into ``flat``."""
    output = flat.elements
    part = output.numel()
    if part * group.size != elements.numel():
        raise ValueError(
            f"the input has {elements.numel()} elements, but the output {part}, which should be one of {group.size} equal parts"
        )
    if operator.native is None:
        header = _header(operator, output)
        parts = [packets.pack(header, own) for own in torch.split(elements, part)] if part else []
        sizes = [own.numel() for own in parts] or [0] * group.size

        def take(data: memoryview, blocks: list[int]) -> None:
            _put_together(group, packets.unpack(data, blocks), output, operator)
            flat.finish()

        together = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device="cpu")
        return operations.alltoall_by_blocks(group, together, sizes, take)
    if operator.factor is not None:
        elements = elements * operator.factor
    # The output may be this rank's part of the input; any other is read after results have come.
    elif output.data_ptr() != elements[(group.rank or 0) * part :].data_ptr():
        elements = apart(elements, output)
    return flat.filled_by(operations.reducescatter_into(group, elements, output, operator.native))


def _natively(group: Group, elements: torch.Tensor, output: torch.Tensor, operator: Operator) -> Plan:
    assert operator.native is not None, "the members do it themselves"
    if operator.factor is not None:
        scaled = elements * operator.factor
        return operations.allreduce(group, scaled, operator.native, in_place=True).then(lambda: put(output, scaled))
    return operations.allreduce_into(group, elements, output, operator.native)


def _exchanged(group: Group, elements: torch.Tensor, operator: Operator, output: torch.Tensor | None = None) -> Plan:
    result = elements if output is None else output

    def take(data: memoryview, blocks: list[int]) -> None:
        _put_together(group, packets.unpack(data, blocks), result, operator)

    return operations.allgather_by_blocks(group, packets.pack(_header(operator, elements), elements), take)


def _header(operator: Operator, elements: torch.Tensor) -> list[int]:
    return [_BITWISE[operator.op][0], NUMBERS[elements.dtype], elements.numel()]


def _said(header: tuple[int, ...]) -> str:
    operator, dtype, elements = header
    if operator not in _BITWISE_NAMES or dtype not in arrays.DTYPE_NAMES:
        raise Mismatch("a member called another operation: every rank must call the same one")
    return f"{_BITWISE_NAMES[operator]} of {elements} elements of {arrays.DTYPE_NAMES[dtype]}"


def _put_together(group: Group, received: Sequence[packets.Packet], result: torch.Tensor, operator: Operator) -> None:
    packets.check_alike(received, group.ranks, [_said(packet.header) for packet in received])
    numbers = [packet.numbers(result.dtype) for packet in received]
    if numbers:
        put(result, functools.reduce(_BITWISE[operator.op][1], numbers))
