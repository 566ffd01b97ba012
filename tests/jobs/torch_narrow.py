"""Scenarios of shoal.torch for 3 ranks: float32 gradients that travel as bfloat16."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_scenarios import TINY_MB, inputs, loss_of, mlp

import shoal
from shoal.torch import DistributedDataParallel

SCENARIOS: dict[str, Callable[[], None]] = {}

NARROW: dict[str, Any] = {"wire_dtype": torch.bfloat16}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def rounded(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def own_gradients(module: nn.Module, rank: int) -> list[Tensor | None]:
    reference = copy.deepcopy(module)
    reference.zero_grad()
    loss_of(reference, rank).backward()
    return [parameter.grad for parameter in reference.parameters()]


def mean_of(each: list[Tensor]) -> Tensor:
    """Of what ranks contribute, in their order, bit by bit."""
    total = rounded(each[0])
    for values in each[1:]:
        total = total + rounded(values)
    return rounded(total / len(each))


def step_is_rounded(model: DistributedDataParallel) -> None:
    everyone = [own_gradients(model.module, rank) for rank in range(shoal.size())]
    model.zero_grad()
    loss_of(model, shoal.rank()).backward()
    for index, parameter in enumerate(model.module.parameters()):
        expected = mean_of([gradients[index] for gradients in everyone])  # type: ignore[misc]
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected), (parameter.grad, expected)


@scenario
def each_gradient_is_rounded_once_and_the_mean_once_more() -> None:
    for options in ({}, {"fusion_mb": TINY_MB}, {"find_unused_parameters": True}, {"static_graph": True}):
        model = DistributedDataParallel(mlp(), **NARROW, **options)  # type: ignore[arg-type]
        for _ in range(3):
            step_is_rounded(model)
        assert all(
            buffer.mirror is not None and 2 * buffer.mirror.nbytes == buffer.memory.nbytes
            for buffer in model._reducer.arenas.buffers
        )


@scenario
def what_is_not_float32_travels_as_it_is() -> None:
    model = DistributedDataParallel(nn.ModuleList([nn.Linear(6, 2).double(), nn.Linear(6, 2).bfloat16()]), **NARROW)
    x = inputs(shoal.rank())
    (model.module[0](x.double()).sum() + model.module[1](x.bfloat16()).sum()).backward()
    assert all(buffer.mirror is None or buffer.mirror.dtype == buffer.memory.dtype for buffer in arenas_of(model))


@scenario
def complex_gradients_are_rounded_as_pairs() -> None:
    model = DistributedDataParallel(nn.Linear(3, 2, bias=False, dtype=torch.complex64), **NARROW)
    x = torch.view_as_complex(inputs(shoal.rank(), 0, 6).view(5, 3, 2))
    model(x).abs().square().sum().backward()
    gradient = torch.view_as_real(model.module.weight.grad)
    assert torch.equal(gradient, rounded(gradient))
    assert gradient.abs().sum() > 0


def arenas_of(model: DistributedDataParallel) -> Any:
    return model._reducer.arenas.buffers


@scenario
def gradients_that_add_up_are_rounded_when_they_are_sent() -> None:
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), **NARROW)
    with model.no_sync():
        (model(torch.ones(1, 1)) * (1 + 2**-9)).sum().backward()
    assert model.module.weight.grad.item() == 1 + 2**-9
    (model(torch.ones(1, 1)) * (1 + 2**-9)).sum().backward()
    assert model.module.weight.grad.item() == 2


def fed_back(model: DistributedDataParallel, steps: int, gradient: float) -> list[float]:
    seen = []
    for _ in range(steps):
        model.zero_grad()
        (model(torch.ones(1, 1)) * gradient).sum().backward()
        seen.append(model.module.weight.grad.item())
    return seen


@scenario
def with_error_feedback_nothing_is_lost_over_many_steps() -> None:
    gradient = 1 + 3 * 2**-11  # 3/16 of bfloat16's last place at 1
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), **NARROW)
    assert fed_back(model, 16, gradient) == [1.0] * 16
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), **NARROW, error_feedback=True)
    seen = fed_back(model, 16, gradient)
    assert sum(seen) == 16 * gradient, seen
    assert set(seen) == {1.0, 1 + 2**-7}


@scenario
def infinities_are_not_fed_back() -> None:
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), **NARROW, error_feedback=True)
    for broken in (torch.inf, torch.nan):
        assert not torch.tensor(fed_back(model, 1, broken)).isfinite().any()
        assert fed_back(model, 2, 1.0) == [1.0, 1.0]
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False), **NARROW, error_feedback=True)
    for scale, given in ((1.0, [1.0, 1.0]), (1024.0, [1.001, torch.inf]), (1.0, [1.0, 1.0])):
        model.zero_grad()
        (model(torch.tensor([given])) * scale).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0, 1.0]]


@scenario
def what_was_frozen_or_moved_is_not_fed_back() -> None:
    model = DistributedDataParallel(mlp(), **NARROW, error_feedback=True)
    loss_of(model, shoal.rank()).backward()
    narrowing = model._reducer.managed.narrowing
    loss_of(model, shoal.rank()).backward()
    assert narrowing._taken
    model.module[0].weight.requires_grad_(False)
    model(inputs(shoal.rank()))
    assert not narrowing._taken
    model.module[0].weight.requires_grad_(True)
    model.zero_grad()
    step_is_rounded(model)


@scenario
def a_copy_sends_as_many_bits_as_its_original() -> None:
    model = DistributedDataParallel(mlp(), **NARROW)
    step_is_rounded(copy.deepcopy(model))


@scenario
def ranks_that_run_out_count_as_zero() -> None:
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), **NARROW)
    with model.join():
        for _ in range(shoal.rank() + 1):
            fed_back(model, 1, 3.0)
    assert model.module.weight.grad.item() == 1.0


@scenario
def ranks_agree_how_gradients_travel() -> None:
    model = DistributedDataParallel(mlp(), wire_dtype=torch.bfloat16 if shoal.rank() == 1 else None)
    with pytest.raises(shoal.Mismatch, match="wire_dtype"):
        loss_of(model, shoal.rank()).backward()


@scenario
def formats_that_do_not_exist_are_refused() -> None:
    for wrong in (torch.float16, torch.float32, "bfloat16"):
        with pytest.raises(ValueError, match=r"wire_dtype is torch\.bfloat16 or None"):
            DistributedDataParallel(mlp(), wire_dtype=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="error_feedback"):
        DistributedDataParallel(mlp(), error_feedback=True)


@scenario
def a_buffer_that_cannot_be_rounded_on_one_rank_is_an_error_on_every_rank() -> None:
    model = DistributedDataParallel(mlp(), **NARROW)
    loss = loss_of(model, shoal.rank())
    if shoal.rank() == 1:
        narrowing = model._reducer.managed.narrowing

        def no_memory(*_: Tensor) -> None:
            raise MemoryError("no memory for 4 bytes")

        narrowing.of_buffer = lambda _: no_memory  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            loss.backward()
        del narrowing.of_buffer
    else:
        with pytest.raises(shoal.ShoalError, match=r"failed on rank 1 .*no memory for 4 bytes"):
            loss.backward()
    for _ in range(2):
        step_is_rounded(model)
