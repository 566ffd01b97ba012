"""Sums and means of sparse tensors (layout ``torch.sparse_coo``, on the CPU).

Members exchange the indices and values that they have, of as many elements as each has, and each adds them up in the group's
order: the same bits everywhere. 16-bit values are summed in float32 and rounded once, as those of other tensors.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp

from shoal.errors import Mismatch
from shoal.job.groups import Group
from shoal.ops import operations
from shoal.ops.arrays import DTYPE_NAMES
from shoal.ops.operations import Plan
from shoal.torch.c10d import packets
from shoal.torch.known_dtypes import NUMBERS


def allreduce(group: Group, tensor: torch.Tensor, op: Any) -> Plan:
    """In place: the tensor gets the indices that any member has. ``op``: SUM or AVG. Raises TypeError for what it cannot do."""
    kind = getattr(op, "op", op)
    if kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise TypeError(f"sparse tensors have SUM and AVG, not {op}: pass tensor.to_dense()")
    if not tensor.is_cpu or tensor.dtype not in NUMBERS or tensor.dtype == torch.bool:
        raise TypeError(
            f"a sparse tensor of shape {list(tensor.shape)} with {tensor.dtype} on {tensor.device}: only sparse tensors of real "
            "numbers on the CPU are summed: pass tensor.to_dense(), or make the layer with sparse=False"
        )
    given = tensor.detach().coalesce()
    indices, values = given.indices().contiguous(), given.values().contiguous()
    header = [NUMBERS[tensor.dtype], given.sparse_dim(), *tensor.shape]

    def take(data: memoryview, blocks: list[int]) -> None:
        received = packets.unpack(data, blocks)
        packets.check_alike(received, group.ranks, [_said(packet.header) for packet in received])
        total = _added([_tensor(packet, tensor, given.sparse_dim()) for packet in received])
        # A detached sparse tensor has indices of its own.
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.copy_(_divided(total, len(received), kind).to(tensor.dtype))

    return operations.allgather_by_blocks(group, packets.pack(header, indices, values), take)


def _said(header: tuple[int, ...]) -> str:
    if len(header) < 2 or header[0] not in DTYPE_NAMES:
        raise Mismatch("a member called another operation: every rank must call the same one")
    dtype, sparse_dim, *shape = header
    return f"a sparse tensor of {DTYPE_NAMES[dtype]} {shape}, {sparse_dim} of whose dimensions are sparse"


def _tensor(packet: packets.Packet, like: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    dense_shape = like.shape[sparse_dim:]
    each = sparse_dim * torch.int64.itemsize + dense_shape.numel() * like.itemsize
    count = len(packet.data) // each
    begin = count * sparse_dim * torch.int64.itemsize
    indices = packet.data[:begin].view(torch.int64).view(sparse_dim, count)
    values = packet.data[begin:].clone().view(like.dtype).view(count, *dense_shape)
    wide = values.float() if like.dtype in (torch.float16, torch.bfloat16) else values
    return torch.sparse_coo_tensor(indices, wide, like.shape, device="cpu", check_invariants=False, is_coalesced=True)


def _added(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = (total + part).coalesce()
    return total


def _divided(total: torch.Tensor, members: int, kind: Any) -> torch.Tensor:
    if kind == ReduceOp.SUM:
        return total
    rounding = None if total.is_floating_point() else "trunc"
    values = torch.div(total.values(), members, rounding_mode=rounding)
    return torch.sparse_coo_tensor(
        total.indices(), values, total.shape, device="cpu", check_invariants=False, is_coalesced=True
    )
