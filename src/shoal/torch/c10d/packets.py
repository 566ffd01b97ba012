"""What members exchange where Shoal has no operation for it: a header of whole numbers, then bytes.

Every member sees the headers of all, so that all of them raise the same error where one differs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from shoal.errors import Mismatch

_WORD = 8


class Packet(NamedTuple):
    """``member``: who sent it, an index into the group. ``data``: bytes, in memory of their own."""

    member: int
    header: tuple[int, ...]
    data: torch.Tensor

    def numbers(self, dtype: torch.dtype) -> torch.Tensor:
        """The bytes as numbers, of one dimension."""
        return self.data.view(dtype)


def pack(header: Sequence[int], *parts: torch.Tensor) -> torch.Tensor:
    """One dimension of bytes. ``parts``: contiguous."""
    words = torch.tensor([len(header), *header], dtype=torch.int64, device="cpu")
    return torch.cat([words.view(torch.uint8), *(part.reshape(-1).view(torch.uint8) for part in parts)])


def unpack(data: memoryview, blocks: Sequence[int]) -> list[Packet]:
    """What came from the members, ``blocks`` bytes from each; nothing from those that sent none."""
    if not sum(blocks):
        return []
    received = torch.split(torch.frombuffer(data, dtype=torch.uint8), list(blocks))
    return [_packet(member, block.clone()) for member, block in enumerate(received) if len(block)]


def check_alike(packets: Sequence[Packet], ranks: Sequence[int], said: Sequence[str]) -> None:
    """Raises Mismatch if the headers differ. ``ranks``: of the members. ``said``: what each packet's header means."""
    for packet, words in zip(packets, said, strict=True):
        if words != said[0]:
            raise Mismatch(
                f"ranks disagree: rank {ranks[packets[0].member]} called it with {said[0]}, rank {ranks[packet.member]} with "
                f"{words}. Every rank must call it with the same arguments"
            )


def _packet(member: int, block: torch.Tensor) -> Packet:
    words = int(block[:_WORD].view(torch.int64))
    begin = _WORD * (1 + words)
    return Packet(member, tuple(block[_WORD:begin].view(torch.int64).tolist()), block[begin:].clone())
