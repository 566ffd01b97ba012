"""What a slot notices of the tensors that it has handed out, and what arenas do about it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shoal.torch.arena import GradientArenas
from shoal.torch.slots import Slot


@pytest.mark.parametrize(
    "way",
    [
        lambda tensor: tensor,
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.data,
        lambda tensor: tensor.view(-1)[2:],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.untyped_storage(),
    ],
)
def test_a_slot_is_held_as_long_as_anything_is_on_its_memory(way: Callable[[torch.Tensor], Any]) -> None:
    slot = Slot(torch.zeros(2, 3))
    assert not slot.is_held
    handed = slot.hand_out()
    assert slot.is_held
    held = way(handed)
    del handed
    assert slot.is_held
    del held
    assert not slot.is_held


def test_who_holds_one_of_two_holds_the_slot() -> None:
    slot = Slot(torch.zeros(3))
    first, second = slot.hand_out(), slot.hand_out()
    del second
    assert slot.is_held
    del first
    assert not slot.is_held


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(2, 3), (1, 4), (4, 1), (1,), (), (0, 3)])
def test_what_is_handed_out_is_the_memory_in_its_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    memory = torch.zeros(shape, dtype=dtype)
    for each in (memory, memory.t() if memory.dim() == 2 else memory):
        slot = Slot(each)
        handed = slot.hand_out()
        assert (handed.shape, handed.stride(), handed.dtype) == (each.shape, each.stride(), dtype)
        assert slot.is_under(handed)
        assert not handed._is_view()
        handed.fill_(2)
        assert bool((each == 2).all())


def test_changes_of_one_gradient_are_told_from_those_of_its_neighbours() -> None:
    memory = torch.zeros(4)
    first, second = Slot(memory[:2]).hand_out(), Slot(memory[2:]).hand_out()
    before = first._version
    second.add_(1)
    assert first._version == before
    first.add_(1)
    assert first._version != before


def test_memory_that_was_handed_out_cannot_be_freed_by_resizing() -> None:
    handed = Slot(torch.zeros(4)).hand_out()
    with pytest.raises(RuntimeError, match="not resizable"):
        handed.untyped_storage().resize_(0)


def arena(count: int = 2) -> tuple[list[nn.Parameter], GradientArenas]:
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(count)]
    return parameters, GradientArenas([(f"p{n}", each) for n, each in enumerate(parameters)], range(count), 1024)


def one_pass(parameters: list[nn.Parameter], arenas: GradientArenas, value: float) -> None:
    """As a backward pass does it: fresh gradients where there are none, and sums where there are."""
    arenas.prepare()
    for index, parameter in enumerate(parameters):
        if parameter.grad is None:
            parameter.grad = torch.full((3,), value)
        else:
            parameter.grad.add_(value)
        arenas.place(index)
    for index in range(len(parameters)):
        arenas.settle(index)


def memory_of(arenas: GradientArenas) -> int:
    return arenas.buffers[0].memory.data_ptr()


def test_gradients_that_nobody_holds_stay_in_the_same_memory() -> None:
    parameters, arenas = arena()
    before = memory_of(arenas)
    for _ in range(3):
        one_pass(parameters, arenas, 1.0)
        for index, parameter in enumerate(parameters):
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == arenas.slot(index).data_ptr()
            parameter.grad = None
    assert memory_of(arenas) == before


def test_a_held_gradient_is_left_to_its_holder_and_is_apart_from_then_on() -> None:
    parameters, arenas = arena()
    one_pass(parameters, arenas, 1.0)
    held = parameters[0].grad
    for parameter in parameters:
        parameter.grad = None
    for value in (2.0, 3.0):
        one_pass(parameters, arenas, value)
        assert torch.equal(held, torch.ones(3))
        assert parameters[0].grad is not None
        assert parameters[0].grad.data_ptr() != arenas.slot(0).data_ptr()
        assert parameters[1].grad is not None
        assert parameters[1].grad.data_ptr() == arenas.slot(1).data_ptr()
        for parameter in parameters:
            assert torch.equal(parameter.grad, torch.full((3,), value))
            parameter.grad = None


def test_a_held_gradient_survives_a_new_order() -> None:
    parameters, arenas = arena(3)
    one_pass(parameters, arenas, 1.0)
    parameters[1].grad.mul_(5)
    held, before = parameters[1].grad, memory_of(arenas)
    arenas.reorder([1, 0, 2])
    assert memory_of(arenas) != before
    assert torch.equal(held, torch.full((3,), 5.0))
    assert [parameter.grad[0].item() for parameter in parameters] == [1.0, 5.0, 1.0]


def test_a_gradient_that_the_program_has_made_is_written_where_it_is() -> None:
    parameters, arenas = arena()
    own = torch.zeros(3)
    parameters[0].grad = own
    one_pass(parameters, arenas, 4.0)
    assert parameters[0].grad is own
    assert torch.equal(arenas.slot(0), torch.full((3,), 4.0))
    parameters[0].grad = None
    one_pass(parameters, arenas, 4.0)
    assert parameters[0].grad.data_ptr() == arenas.slot(0).data_ptr()
