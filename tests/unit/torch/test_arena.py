"""What gradient arenas promise, without any communication."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.gradients.layout import ALIGNMENT
from shoal.job import runtime
from shoal.torch.arena import GradientArenas
from shoal.torch.arena_memory import PAGE
from shoal.torch.gradient_format import gradient_strides
from shoal.torch.graph import tensors_in
from shoal.torch.new_parameters import KnownParameters, describe_values

ORDER = [2, 0, 3, 1]

DTYPES = (torch.float32, torch.float32, torch.float64, torch.float32, torch.float32)


def parameters() -> list[tuple[str, nn.Parameter]]:
    torch.manual_seed(0)
    tensors = [
        torch.randn(5, 7),
        torch.randn(33, dtype=torch.float64),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(6, 8).t(),
    ]
    return [(f"p{index}", nn.Parameter(tensor)) for index, tensor in enumerate(tensors)]


def lies_in(arenas: GradientArenas, index: int, parameter: nn.Parameter) -> bool:
    """Whether the parameter's gradient is its slot of the arenas."""
    gradient, slot = parameter.grad, arenas.slot(index)
    return gradient is not None and (gradient.data_ptr(), gradient.stride()) == (slot.data_ptr(), slot.stride())


@pytest.mark.parametrize("buffer_bytes", [64, 200, 10**6])
def test_gradients_fill_the_buffers_of_their_dtype_in_order(buffer_bytes: int) -> None:
    named = parameters()
    arenas = GradientArenas(named, ORDER, buffer_bytes)
    for index, (_, parameter) in enumerate(named):
        parameter.grad = torch.full_like(parameter, index + 1.0)
        arenas.place(index)
    for dtype, order in ((torch.float32, [2, 0, 3]), (torch.float64, [1])):
        windows = [buffer.memory for buffer in arenas.buffers if buffer.memory.dtype == dtype]
        gaps = [-named[index][1].nbytes % ALIGNMENT // dtype.itemsize for index in order]
        expected = [torch.full((named[index][1].numel(),), index + 1.0, dtype=dtype) for index in order]
        expected = [part for own, gap in zip(expected, gaps, strict=True) for part in (own, own.new_zeros(gap))]
        assert torch.equal(torch.cat(windows), torch.cat(expected))
        assert windows[0].data_ptr() % PAGE == 0
        ends = [window.data_ptr() + window.nbytes for window in windows]
        assert [window.data_ptr() for window in windows[1:]] == ends[:-1]


def test_no_order_takes_more_memory_than_another() -> None:
    named = [("scale", nn.Parameter(torch.ones(1))), ("weight", nn.Parameter(torch.ones(100, 16)))]
    arenas = GradientArenas(named, [1, 0], 10**6)
    arenas.reorder([0, 1])
    for index, (_, parameter) in enumerate(named):
        parameter.grad = torch.full_like(parameter, index + 1.0)
        arenas.place(index)
    (buffer,) = arenas.buffers
    assert int((buffer.memory == 2).sum()) == 1600, "all of it is averaged"


def test_a_gradient_has_the_memory_layout_of_its_parameter() -> None:
    named = parameters()
    arenas = GradientArenas(named, ORDER, 64)
    for index, (_, parameter) in enumerate(named):
        assert arenas.slot(index).stride() == parameter.stride()
        assert arenas.slot(index).shape == parameter.shape
    gaps = torch.randn(6, 8)[:, ::2]
    assert gradient_strides(gaps) == (4, 1)


def test_a_gradient_is_copied_once_and_then_added_to_in_place() -> None:
    named = parameters()
    arenas = GradientArenas(named, ORDER, 64)
    parameter = named[3][1]
    (parameter * 2).sum().backward()
    assert not lies_in(arenas, 3, parameter)
    arenas.place(3)
    assert lies_in(arenas, 3, parameter)
    (parameter * 2).sum().backward()
    assert lies_in(arenas, 3, parameter)
    assert torch.equal(parameter.grad, torch.full_like(parameter, 4.0))


def test_taking_over_keeps_values_and_none() -> None:
    named = parameters()
    before = GradientArenas(named, ORDER, 64)
    named[0][1].grad = torch.full((5, 7), 3.0)
    before.place(0)
    after = GradientArenas(named, ORDER[::-1], 128)
    after.take_over(before)
    assert lies_in(after, 0, named[0][1])
    assert torch.equal(after.slot(0), torch.full((5, 7), 3.0))
    assert [named[index][1].grad for index in (1, 2, 3)] == [None, None, None]


@pytest.mark.parametrize("order", [[2, 0, 3, 1], [3, 0, 2, 1], [0, 2, 1, 3], [1, 3, 2, 0]])
def test_in_another_order_gradients_keep_their_values_in_the_same_memory(order: list[int]) -> None:
    named = parameters()
    arenas = GradientArenas(named, ORDER, 64)
    values = {index: torch.randn_like(named[index][1]) for index in (0, 1, 2)}
    for index, value in values.items():
        named[index][1].grad = value.clone()
        if index != 1:  # it comes from elsewhere
            arenas.place(index)
    memory = begins(arenas)
    arenas.reorder(order)
    assert begins(arenas) == memory
    for index, value in values.items():
        assert lies_in(arenas, index, named[index][1]) == (index != 1)
        assert torch.equal(named[index][1].grad, value)
    assert named[3][1].grad is None
    fresh = GradientArenas(named, order, 64)
    assert [buffer.gradients for buffer in arenas.buffers] == [buffer.gradients for buffer in fresh.buffers]
    for index in range(len(named)):
        dtype = named[index][1].dtype
        places = [one.slot(index).data_ptr() - begins(one)[dtype] for one in (arenas, fresh)]
        assert places[0] == places[1]


@pytest.mark.parametrize("view", [lambda gradient: gradient, lambda gradient: gradient[1:], torch.Tensor.numpy])
def test_in_another_order_a_gradient_that_is_held_stays_what_it_is(view: Callable[[torch.Tensor], Any]) -> None:
    named = parameters()
    arenas = GradientArenas(named, ORDER, 64)
    for _, parameter in named:
        parameter.grad = torch.ones_like(parameter)
    for index in range(4):
        arenas.place(index)
    held = view(named[0][1].grad)
    arenas.reorder(ORDER[::-1])
    for _ in range(3):
        held[:] = 0.0
        assert not named[0][1].grad[1:].any()
        arenas.prepare()
        for index, (_, parameter) in enumerate(named):
            parameter.grad += 2.0
            arenas.place(index)
        arenas.slot(0).mul_(2.0)
        arenas.settle(0)
        assert (held[1:] == 4.0).all()
        assert lies_in(arenas, 2, named[2][1])


def test_where_there_is_no_memory_gradients_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    named = parameters()
    arenas = GradientArenas(named, ORDER, 64)
    for _, parameter in named:
        parameter.grad = torch.ones_like(parameter)
    for index in range(4):
        arenas.place(index)
    held = named[0][1].grad

    def refuse(size: int) -> None:
        raise shoal.ShoalError(f"no memory for {size} bytes")

    with monkeypatch.context() as context:
        context.setattr(runtime, "allocate", refuse)
        with pytest.raises(shoal.ShoalError, match="no memory for"):
            arenas.reorder(ORDER[::-1])
        named[0][1].grad = None
        with pytest.raises(shoal.ShoalError, match="no memory for"):
            arenas.prepare()
        named[0][1].grad = held
    assert arenas.order == [index for index in ORDER if index != 1] + [1]
    for index, (_, parameter) in enumerate(named):
        assert lies_in(arenas, index, parameter)
        assert torch.equal(parameter.grad, torch.ones_like(parameter))
    arenas.reorder(ORDER[::-1])
    assert arenas.order == [1, 3, 0, 2]


def begins(arenas: GradientArenas) -> dict[torch.dtype, int]:
    return {buffer.memory.dtype: buffer.memory.data_ptr() for buffer in reversed(arenas.buffers)}


@pytest.mark.parametrize("place", ["none", "arena", "elsewhere"])
@pytest.mark.parametrize("used_elsewhere", [False, True])
def test_an_unused_gradient_contributes_what_it_is_and_changes_only_if_used_elsewhere(
    place: str, used_elsewhere: bool
) -> None:
    named = parameters()
    arenas = GradientArenas(named, ORDER, 64)
    parameter, view = named[0][1], arenas.slot(0)
    view.fill_(99.0)
    if place != "none":
        parameter.grad = torch.full((5, 7), 3.0)
    if place == "arena":
        arenas.place(0)
    own = parameter.grad
    saved = arenas.contribute_unused(0)
    assert torch.equal(view, torch.full((5, 7), 0.0 if place == "none" else 3.0))
    view.fill_(5.0)
    arenas.settle_unused(0, saved, used_elsewhere)
    if used_elsewhere:
        assert lies_in(arenas, 0, parameter)
        assert torch.equal(view, torch.full((5, 7), 5.0))
    else:
        assert parameter.grad is own
        assert own is None or torch.equal(own, torch.full((5, 7), 3.0))


def test_complex_gradients_are_summed_as_real_numbers() -> None:
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    arenas = GradientArenas([("z", parameter)], [0], 64)
    arenas.slot(0).copy_(torch.tensor([1 + 2j, 3 + 4j, 5 + 6j]))
    assert arenas.buffers[0].memory[:6].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_dtype_without_an_arena_is_refused_by_name() -> None:
    parameter = nn.Parameter(torch.zeros(3).to(torch.float8_e4m3fn))
    with pytest.raises(TypeError, match="z has dtype"):
        GradientArenas([("z", parameter)], [0], 64)


def test_tensors_are_found_however_nested() -> None:
    a, b, c = torch.zeros(1), torch.ones(1), torch.ones(2)
    assert list(tensors_in({"x": [a, (b, None)], "y": {"z": c}, "n": 3})) == [a, b, c]


def test_an_order_is_another_one_only_if_a_gradient_changes_buffers() -> None:
    named = [(f"p{index}", nn.Parameter(torch.zeros(16, dtype=dtype))) for index, dtype in enumerate(DTYPES)]
    arenas = GradientArenas(named, [0, 1, 2, 3, 4], 128)
    assert arenas.order == [0, 1, 3, 4, 2]
    assert not arenas.arrangement.changes_buffers([2, 0, 1, 3, 4]), "dtypes have arenas of their own"
    assert not arenas.arrangement.changes_buffers([1, 0, 4, 2, 3]), "within the same buffers of two gradients each"
    assert arenas.arrangement.changes_buffers([0, 3, 1, 4, 2])
    arenas.reorder([0, 3, 1, 4, 2])
    assert not arenas.arrangement.changes_buffers([3, 0, 2, 4, 1])
    assert arenas.arrangement.changes_buffers([0, 1, 2, 3, 4])


def test_parameters_are_known_by_themselves_and_not_by_their_number() -> None:
    parameters = [("weight", nn.Parameter(torch.zeros(2))), ("bias", nn.Parameter(torch.zeros(2)))]
    known = KnownParameters(parameters[:1])
    assert known.unknown_of(parameters) == parameters[1:]
    known.learn(parameters[1:])
    assert known.unknown_of(parameters) == []
    numbers = {id(parameter) for _, parameter in parameters}
    del parameters[:]
    # Memory that was freed is given out again, sooner or later.
    fresh = [nn.Parameter(torch.zeros(2)) for _ in range(1000)]
    again = [parameter for parameter in fresh if id(parameter) in numbers]
    assert again, "no number has come again, so nothing is shown"
    assert len(known.unknown_of(("weight", parameter) for parameter in fresh)) == len(fresh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_values_are_told_apart_by_their_digest(dtype: torch.dtype) -> None:
    values = torch.arange(6).to(dtype).reshape(2, 3)
    changed = values.clone()
    changed[1, 2] += 1
    scalar = torch.ones((), dtype=dtype)
    same, other, turned, number = (
        describe_values([("weight", nn.Parameter(each))]) for each in (values.clone(), changed, values.t().t(), scalar)
    )
    assert describe_values([("weight", nn.Parameter(values))]) == same == turned
    assert len({same[0], other[0], number[0]}) == 3
