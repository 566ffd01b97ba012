"""Parameters and buffers of a module, from one member of the group to all others.

Tensors of a dtype and a device travel together: a broadcast takes M bytes of every link however they are cut, and each has its cost.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import torch

from shoal.ops.storages import put, require_whole
from shoal.ops.submissions import AnyHandle, first_failure, wait_in_stream_or_here
from shoal.torch import graph
from shoal.torch.c10d.tensors import once
from shoal.torch.known_dtypes import in_known_dtype
from shoal.torch.tensor_operations import TensorOperations

# How much of a model is copied at once. The copy is needed beside the model.
CHUNK_BYTES = 25 * 1024 * 1024


def broadcast_state(
    operations: TensorOperations,
    label: str,
    tensors: Sequence[torch.Tensor],
    root: int = 0,
    in_stream: bool = False,
) -> Sequence["Replaced"]:
    """Overwrites ``tensors`` with those of the group's member ``root``.

    Returns what may still be on its way. The root need not wait for the others: its tensors have been copied. Nor need the
    others with ``in_stream``, if their tensors are an accelerator's: the current stream waits.
    Shapes and dtypes must agree; that is for the caller to find out. For autograd they have not changed: a forward pass that
    has used them, as batch normalisation does, can be followed by another before its backward pass.
    """
    with torch.no_grad(), ExitStack() as versions:
        for tensor in tensors:
            if not tensor.is_inference():  # which have no version
                versions.enter_context(graph.unchanged(tensor))
        chunks = enumerate(_chunks([in_known_dtype(tensor.detach()) for tensor in tensors]))
        if operations.group.rank == root:
            return [_send_chunk(operations, f"{label}{number}", chunk, root) for number, chunk in chunks]
        try:
            return [_receive_chunk(operations, f"{label}{number}", chunk, root, in_stream) for number, chunk in chunks]
        except BaseException:
            # What nobody waits for any more is called all the same: so the next call of each means the same on every rank.
            for number, chunk in chunks:
                with suppress(RuntimeError):
                    operations.broadcast(f"{label}{number}", _room_for(chunk), root)
            raise


class Replaced(NamedTuple):
    """Tensors that are overwritten. ``before``: their elements before, one after the other, where the host has not waited."""

    handle: AnyHandle
    tensors: Sequence[torch.Tensor] = ()
    before: torch.Tensor | None = None

    def undo_if_failed(self) -> Exception | None:
        """Waits on the host. After a failure, which is returned, the tensors are as they were."""
        try:
            self.handle.wait()
        except Exception as failure:
            if self.before is not None:
                _fill(self.tensors, self.before)
            return failure
        return None


def wait_for_all(sent: Sequence[Replaced]) -> None:
    """Raises the first error, once all are done."""
    failure = first_failure(each.handle for each in sent)
    if failure is not None:
        raise failure


def _send_chunk(operations: TensorOperations, label: str, tensors: Sequence[torch.Tensor], root: int) -> Replaced:
    return Replaced(operations.broadcast(label, _together(tensors), root))


def _receive_chunk(
    operations: TensorOperations, label: str, tensors: Sequence[torch.Tensor], root: int, in_stream: bool
) -> Replaced:
    received = _room_for(tensors)
    handle = operations.broadcast(label, received, root, in_stream)
    wait_in_stream_or_here(handle)
    before = None if handle.done() else _together(tensors)
    _fill(tensors, received)
    return Replaced(handle, tensors, before)


def _together(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _fill(tensors: Sequence[torch.Tensor], elements_of_all: torch.Tensor) -> None:
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, part in zip(tensors, elements_of_all.split_with_sizes(sizes), strict=True):
        elements = part.view(tensor.shape)
        # A model may have hundreds of buffers, and what these kinds need takes longer than the copy of a small one.
        if tensor.is_inference() or 0 in tensor.stride():
            put(*once(tensor, elements))
        else:
            require_whole(tensor)
            tensor.copy_(elements)


def _room_for(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype, device=tensors[0].device)


def _chunks(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors, those without elements left out, by dtype and device and in pieces of about CHUNK_BYTES."""
    chunks: list[list[torch.Tensor]] = []
    open_chunks: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        kind = tensor.dtype, tensor.device
        chunk, size = open_chunks.get(kind, ([], 0))
        if not chunk or size + tensor.nbytes > CHUNK_BYTES:
            chunk, size = [], 0
            chunks.append(chunk)
        chunk.append(tensor)
        open_chunks[kind] = (chunk, size + tensor.nbytes)
    return chunks
