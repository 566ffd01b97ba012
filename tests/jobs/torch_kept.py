"""More programs as those of torch_programs.py: what a program keeps of its gradients stays what it was, or stays ``param.grad``."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_programs import Wrap, gradients, line, lines, program, x

import shoal
from shoal.torch import DistributedDataParallel


def train(model: nn.Module, factor: float = 1.0) -> None:
    model(x(factor)).sum().backward()


class Generator(nn.Module):
    """And its discriminator, which is frozen in every second step."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = line(), line()

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.discriminator(self.generator(value))
        return out


@program
def gradients_of_a_generator_are_cleared_through_a_list(wrap: Wrap) -> Any:
    module = Generator()
    model, found = wrap(module, find_unused_parameters=True), []
    train(model)
    kept = [parameter.grad for parameter in module.parameters()]
    for step in range(6):
        module.discriminator.weight.requires_grad_(step % 2 == 0)
        torch._foreach_zero_(kept)
        train(model)
        found.append(gradients(model))
    return found


def kept_while_some_are_frozen(wrap: Wrap, keep: Callable[[Tensor], Tensor], frozen: int) -> Any:
    model, found = wrap(lines(3), find_unused_parameters=True), []
    parameters = list(model.parameters())
    train(model)
    kept = [keep(parameter.grad) for parameter in parameters]
    for step in range(4):
        for parameter in parameters[:frozen]:
            parameter.requires_grad_(step % 2 == 1)
        for each in kept:
            each.zero_()
        train(model)
        found += [gradients(model), [each.item() for each in kept]]
        found.append([each is parameter.grad for each, parameter in zip(kept, parameters, strict=True)])
    return found


@program
def kept_gradients_of_frozen_parameters(wrap: Wrap) -> Any:
    return kept_while_some_are_frozen(wrap, lambda gradient: gradient, 1)


@program
def kept_views_of_gradients_of_frozen_parameters(wrap: Wrap) -> Any:
    return kept_while_some_are_frozen(wrap, lambda gradient: gradient.view(-1), 2)


@program
def kept_gradients_of_parameters_that_get_a_second_wrapper(wrap: Wrap) -> Any:
    module, found = lines(3), []
    model = wrap(module)
    train(model)
    kept = [parameter.grad for parameter in module.parameters()]
    second = wrap(module[0])
    for step in range(3):
        torch._foreach_zero_(kept)
        train(second if step == 1 else model)
        found += [
            gradients(module),
            [each is other.grad for each, other in zip(kept, module.parameters(), strict=True)],
        ]
    return found


def taken_by_a_hook(wrap: Wrap, instead: Callable[[Tensor], Tensor | None], accumulates: bool = False) -> Any:
    """A hook keeps the gradient, which was there before, and puts another there, or none."""
    model, found = wrap(lines()), []
    kept: list[Tensor] = []

    def take(parameter: Tensor) -> None:
        assert parameter.grad is not None
        kept.append(parameter.grad)
        parameter.grad = instead(parameter.grad)

    train(model)
    for step in range(4):
        if not accumulates:
            model.zero_grad(set_to_none=False)
        hooks = [parameter.register_post_accumulate_grad_hook(take) for parameter in model.parameters() if step == 1]
        train(model, step + 1.0)
        for hook in hooks:
            hook.remove()
        found += [gradients(model), [each.item() for each in kept]]
    for each in kept:
        each.fill_(100.0)
    found.append(gradients(model))
    return found


@program
def a_hook_keeps_the_gradient_and_clips_a_copy(wrap: Wrap) -> Any:
    return taken_by_a_hook(wrap, lambda gradient: gradient.clamp(-1.25, 1.25))


@program
def a_hook_keeps_the_gradient_and_takes_it_away(wrap: Wrap) -> Any:
    return taken_by_a_hook(wrap, lambda _: None)


@program
def a_hook_keeps_what_has_been_accumulated(wrap: Wrap) -> Any:
    return taken_by_a_hook(wrap, lambda gradient: gradient * 2, accumulates=True)


@program
def a_hook_takes_gradients_away_that_only_add_up(wrap: Wrap) -> Any:
    model, kept = wrap(lines()), []

    def take(parameter: Tensor) -> None:
        kept.append(parameter.grad)
        parameter.grad = None

    train(model)
    hooks = [parameter.register_post_accumulate_grad_hook(take) for parameter in model.parameters()]
    with model.no_sync():
        train(model, 2.0)
    for hook in hooks:
        hook.remove()
    found = [[each.item() for each in kept], gradients(model)]
    train(model)
    return [*found, [each.item() for each in kept], gradients(model)]


def taken_and_put_back(
    wrap: Wrap, instead: Callable[[Tensor], Tensor | None], put: Callable[[list[nn.Parameter], Tensor], None]
) -> Any:
    """The hook of the last layer, whose gradient comes first, takes it; that of the first one puts it somewhere."""
    model, found = wrap(lines(3)), []
    parameters = list(model.parameters())
    taken: list[Tensor] = []

    def take(parameter: Tensor) -> None:
        assert parameter.grad is not None
        taken.append(parameter.grad)
        parameter.grad = instead(parameter.grad)

    train(model)
    hooks = [
        parameters[2].register_post_accumulate_grad_hook(take),
        parameters[0].register_post_accumulate_grad_hook(lambda _: put(parameters, taken[-1])),
    ]
    model.zero_grad(set_to_none=False)
    train(model, 2.0)
    for hook in hooks:
        hook.remove()
    found += [gradients(model), taken[0].item()]
    train(model, 3.0)
    return [*found, gradients(model), taken[0].item()]


@program
def a_later_hook_puts_the_gradient_back(wrap: Wrap) -> Any:
    def put(parameters: list[nn.Parameter], taken: Tensor) -> None:
        parameters[2].grad = taken

    none_instead = taken_and_put_back(wrap, lambda _: None, put)
    return [none_instead, taken_and_put_back(wrap, lambda gradient: gradient * 2, put)]


@program
def a_later_hook_gives_the_gradient_to_another_parameter(wrap: Wrap) -> Any:
    def put(parameters: list[nn.Parameter], taken: Tensor) -> None:
        parameters[0].grad = taken

    return taken_and_put_back(wrap, lambda _: None, put)


class Fused(nn.Module):
    """Parameters that are parts of another one's shape, and a square one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.both = (nn.Parameter(torch.ones(size)) for size in (4, 4, 8))
        self.square, self.other_square = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))

    def forward(self, value: Tensor) -> Tensor:
        numbers = torch.arange(1.0, 9.0) * value.view(1)
        squares = self.square * numbers[:4].view(2, 2) * self.other_square * numbers[4:].view(2, 2)
        return (torch.cat([self.first, self.second]) * numbers * self.both).sum() + squares.sum()


@program
def hooks_give_views_of_a_gradient_to_other_parameters(wrap: Wrap) -> Any:
    module = Fused()
    model = wrap(module)
    taken: dict[str, Tensor] = {}

    def take(name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            taken[name] = parameter.grad
            parameter.grad = None

        return hook

    def give(name: str, view: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert name in taken, "the engine has reached them in another order"
            parameter.grad = view(taken[name])

        return hook

    hooks = {
        module.both: take("both"),
        module.first: give("both", lambda gradient: gradient.chunk(2)[0]),
        module.second: give("both", lambda gradient: gradient.chunk(2)[1]),
        module.other_square: take("square"),
        module.square: give("square", lambda gradient: gradient.t()),
    }
    train(model)
    model.zero_grad(set_to_none=False)
    registered = [parameter.register_post_accumulate_grad_hook(hook) for parameter, hook in hooks.items()]
    train(model, 2.0)
    for each in registered:
        each.remove()
    return [each.grad for each in module.parameters()]


@program
def a_hook_takes_a_gradient_in_a_pass_that_fails(wrap: Wrap) -> Any:
    model, taken = wrap(lines(3)), []
    parameters = list(model.parameters())

    def take(parameter: Tensor) -> None:
        taken.append(parameter.grad)
        parameter.grad = None

    def fail(_: Tensor) -> None:
        raise ArithmeticError

    train(model)
    model.zero_grad(set_to_none=False)
    hooks = [parameters[2].register_post_accumulate_grad_hook(take), parameters[0].register_hook(fail)]
    try:
        train(model, 2.0)
    except ArithmeticError:
        for hook in hooks:
            hook.remove()
    model.module.append(line())
    model = model if wrap is DistributedDataParallel else wrap(model.module)
    train(model)
    return [each.item() for each in taken]


class Parts(nn.Module):
    """``used``: which of its layers take part."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.used = lines(3), [0, 1, 2]

    def forward(self, value: Tensor) -> Tensor:
        for index in self.used:
            value = self.layers[index](value)
        return value


@program
def a_hook_takes_the_gradient_of_an_unused_parameter(wrap: Wrap) -> Any:
    module, kept, found = Parts(), [], []
    model = wrap(module, find_unused_parameters=True)
    first, last = module.layers[0].weight, module.layers[2].weight

    def take(_: Tensor) -> None:
        kept.append(first.grad)
        first.grad = None

    train(model)
    for used in ([1, 2], [0, 1, 2]):
        module.used = used
        hook = last.register_post_accumulate_grad_hook(take) if len(used) == 2 else None
        train(model)
        if hook is not None:
            hook.remove()
        found += [gradients(model), [each.item() for each in kept]]
    return found


@program
def a_kept_gradient_stays_as_it_was_where_all_parameters_change_wrappers(wrap: Wrap) -> Any:
    module = lines()
    model, found = wrap(module), []
    train(model)
    kept = [parameter.grad for parameter in module.parameters()]
    del model
    model = wrap(module)
    for _ in range(2):
        torch._foreach_zero_(kept)
        train(model)
        found += [
            gradients(module),
            [each is other.grad for each, other in zip(kept, module.parameters(), strict=True)],
        ]
    return found


@program
def a_hook_takes_the_gradient_of_a_parameter_that_only_other_ranks_use(wrap: Wrap) -> Any:
    module, kept = Parts(), []
    model = wrap(module, find_unused_parameters=True)
    first, last = module.layers[0].weight, module.layers[2].weight

    def take(_: Tensor) -> None:
        kept.append(first.grad)
        first.grad = None

    train(model)
    module.used = [1, 2] if shoal.rank() == 0 else [0, 1, 2]
    hook = last.register_post_accumulate_grad_hook(take)
    train(model)
    hook.remove()
    return [each.item() for each in kept]


@program
def gradients_are_swapped_by_pytorch(wrap: Wrap) -> Any:
    model, found = wrap(lines()), []
    first, second = model.parameters()
    for step in range(3):
        train(model, step + 1.0)
        first.grad.mul_(2)
        try:
            torch.utils.swap_tensors(first.grad, second.grad)
        except RuntimeError:
            return "PyTorch 2.15 refuses that"
        found.append(gradients(model))
    return found
