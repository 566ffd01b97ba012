"""Scenarios of shoal.torch for 3 ranks: what programs train with, beside what one process does with all ranks' losses."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_scenarios import inputs, loss_of, mlp

import shoal
from shoal.torch import DistributedDataParallel

SCENARIOS: dict[str, Callable[[], None]] = {}

Step = Callable[[nn.Module, torch.optim.Optimizer, Callable[[int], Tensor]], None]
Loss = Callable[[nn.Module, int, int], Tensor]
STEPS = 4


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def plain_step(_: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[int], Tensor]) -> None:
    optimizer.zero_grad()
    loss(0).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def both_train(
    module: nn.Module,
    optimizer_of: Callable[[Any], torch.optim.Optimizer],
    loss: Loss = loss_of,
    step_of: Callable[[], Step] = lambda: plain_step,
    **tolerance: float,
) -> DistributedDataParallel:
    """The wrapper's parameters come out as those of one process, whose loss is the mean of all ranks'."""
    model, alone = DistributedDataParallel(module), copy.deepcopy(module)
    shoal.barrier()
    alone.load_state_dict(model.module.state_dict())
    of_all, of_one = step_of(), step_of()
    optimizer, its = optimizer_of(model.parameters()), optimizer_of(alone.parameters())
    for number in range(STEPS):
        of_all(model, optimizer, lambda _, number=number: loss(model, shoal.rank(), number))  # type: ignore[misc]
        of_one(
            alone,
            its,
            lambda _, number=number: (  # type: ignore[misc]
                torch.stack([loss(alone, rank, number) for rank in range(shoal.size())]).mean()
            ),
        )
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, **tolerance)
    return model


@scenario
def fused_and_foreach_optimizers() -> None:
    both_train(mlp(), lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True), rtol=1e-3, atol=1e-4)
    both_train(mlp(), lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True))
    both_train(mlp(), lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=True))


def scaled_step() -> Step:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[int], Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(0)
        scaler.scale(value).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())

    return step


scales: list[float] = []


@scenario
def autocast_with_a_grad_scaler_that_skips_a_step() -> None:
    """Infinite on one rank, in one step: no rank makes anything of it."""

    def loss(module: nn.Module, rank: int, number: int) -> Tensor:
        value = loss_of(module, rank, number)
        return value * torch.inf if (rank, number) == (1, 2) else value

    scales.clear()
    both_train(mlp(), lambda parameters: torch.optim.SGD(parameters, lr=0.05), loss, scaled_step, rtol=0.05, atol=0.01)
    assert scales == [1024.0] * 4 + [512.0] * 4, scales


@scenario
def channels_last() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Conv2d(4, 2, 2)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss(module: nn.Module, rank: int, number: int) -> Tensor:
        images = inputs(rank, number, 3 * 6 * 6).view(5, 3, 6, 6).contiguous(memory_format=torch.channels_last)
        value: Tensor = module(images).square().mean()
        return value

    model = both_train(module, lambda parameters: torch.optim.SGD(parameters, lr=0.1), loss)
    gradient = model.module[0].weight.grad
    assert gradient.is_contiguous(memory_format=torch.channels_last)
