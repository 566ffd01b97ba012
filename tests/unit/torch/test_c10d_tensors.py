"""Tensors as flat arrays: every element once, in row order, and back into the tensor."""

import pytest
import torch

from shoal.errors import Mismatch
from shoal.ops.operations import Plan
from shoal.torch.c10d.tensors import Flat, divided_by, fill, joined
from shoal.torch.known_dtypes import count


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(8)[::2],
        torch.tensor(5),
        torch.zeros(0, 3),
        torch.arange(3) + 2j,
        (torch.arange(3) + 2j).conj(),
        torch.arange(4).to(torch.float8_e5m2),
        torch.tensor([True, False]),
    ],
    ids=str,
)
def test_what_is_written_to_the_elements_is_in_the_tensor(tensor: torch.Tensor) -> None:
    source, target = Flat(tensor), Flat(tensor.clone())
    target.elements.zero_()
    target.elements.copy_(source.elements)
    target.finish()
    assert source.elements.dim() == 1
    assert source.elements.numel() == count(tensor)
    assert source.elements.nbytes == tensor.nbytes
    assert target.elements.tolist() == source.elements.tolist() == Flat(target._tensor).elements.tolist()


def test_a_contiguous_tensor_is_not_copied() -> None:
    tensor = torch.zeros(3, 4)
    Flat(tensor).elements.fill_(1)
    assert bool((tensor == 1).all())


def test_tensors_are_joined_and_divided() -> None:
    tensors = [torch.ones(2), torch.full((3, 2), 2.0).t()]
    together = joined(tensors)
    planned = divided_by(Plan(lambda _: together.mul_(3), 0), together, tensors)
    planned.finish(None)  # type: ignore[arg-type]
    assert [tensor.unique().tolist() for tensor in tensors] == [[3.0], [6.0]]


def test_dtypes_are_not_joined() -> None:
    with pytest.raises(ValueError, match="one dtype"):
        joined([torch.ones(1), torch.ones(1, dtype=torch.int32)])


def test_blocks_of_another_size_are_a_mismatch() -> None:
    tensors = [torch.empty(2), torch.empty(2)]
    flats = [Flat(tensor) for tensor in tensors]
    data = memoryview(bytearray(16))
    fill(flats, data, [8, 8])
    assert [tensor.tolist() for tensor in tensors] == [[0.0, 0.0]] * 2
    with pytest.raises(Mismatch, match=r"\[4, 12\]"):
        fill(flats, data, [4, 12])
