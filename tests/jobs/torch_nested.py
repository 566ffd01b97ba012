"""More programs as those of torch_programs.py: backward passes inside of others, and gradients that are turned about."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_programs import Wrap, gradients, line, program, x

import shoal
from shoal.torch import DistributedDataParallel


class Recomputed(torch.autograd.Function):
    """A module of which only the input is kept: it is computed again, with a backward pass of its own, inside the outer one."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, value: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(value)
        with torch.no_grad():
            result: Tensor = module(value)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:  # type: ignore[override]
        (value,) = ctx.saved_tensors
        value = value.detach().requires_grad_()
        with torch.enable_grad():
            result = ctx.module(value)
        torch.autograd.backward(result, gradient)
        return None, value.grad


@program
def the_wrapper_is_a_part_that_is_computed_again(wrap: Wrap) -> Any:
    found = []
    for again in (
        Recomputed.apply,
        lambda module, value: checkpoint(module, value, use_reentrant=True),
        lambda module, value: checkpoint(module, value, use_reentrant=False),
    ):
        module = wrap(nn.Sequential(line(), nn.BatchNorm1d(1)))
        head = wrap(line())
        for step in range(2):
            values = torch.stack([x(step + 1.0), x(3.0)]).requires_grad_()
            (head(again(module, values)) ** 2).sum().backward()
            norm = module.module[1]
            found.append([*gradients(module), *gradients(head), norm.running_mean, norm.running_var])
    return found


@program
def a_hook_trains_another_module(wrap: Wrap) -> Any:
    module, other = wrap(line()), wrap(line())
    parameter = next(module.module.parameters())
    parameter.register_hook(lambda gradient: other(x(2.0)).sum().backward())
    found = []
    for _ in range(2):
        module.zero_grad()
        other.zero_grad()
        module(x()).sum().backward()
        found.append([*gradients(module), *gradients(other)])
    return found


@program
def a_gradient_is_turned_about_where_it_lies(wrap: Wrap) -> Any:
    found = []

    def turn(parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        parameter.grad = parameter.grad.t()

    def turn_in_place(parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        parameter.grad.t_()

    for between in (turn, turn_in_place):
        for arguments in ({}, {"find_unused_parameters": True}):
            module = wrap(nn.Linear(64, 64, bias=False), **arguments)
            for step in range(3):
                (module(torch.arange(64.0) * x(step + 1.0)) * torch.linspace(-1, 1, 64)).sum().backward()
                gradient = module.module.weight.grad
                found.append([gradient.sum(), gradient[3, 5], gradient[5, 3], gradient[63, 1], gradient[1, 63]])
                between(module.module.weight)
    return found


@program
def a_pass_of_wrappers_that_are_called_in_another_order_on_each_rank(wrap: Wrap) -> Any:
    models = [wrap(line()) for _ in range(3)]
    # PyTorch's own need the same one.
    turn = shoal.rank() if wrap is DistributedDataParallel else 0
    found = []
    for step in range(2):
        for model in models:
            model.zero_grad()
        torch.cat([model(x(step + 1.0)) for model in [*models[turn:], *models[:turn]]]).square().sum().backward()
        found.append([gradients(model) for model in models])
    return found
