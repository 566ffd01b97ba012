"""What programs do to gradients, parameters and passes: each program runs with our wrapper and with PyTorch's own on gloo.

A program takes the function that wraps a module and returns numbers. Both wrappers must give the same ones, on every rank.
"""

import copy
import importlib
import io
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import shoal
import shoal.torch
from shoal.torch import DistributedDataParallel

Wrap = Callable[..., nn.Module]

PROGRAMS: dict[str, Callable[[Wrap], Any]] = {}

# Whose answer is another one on each rank, as it should be.
OF_EACH_RANK = {
    "a_hook_takes_a_gradient_in_a_pass_that_fails",
    "a_hook_takes_the_gradient_of_a_parameter_that_only_other_ranks_use",
    "a_later_hook_gives_the_gradient_to_another_parameter",
    "a_later_hook_puts_the_gradient_back",
    "a_hook_keeps_the_gradient_and_clips_a_copy",
    "a_hook_keeps_the_gradient_and_takes_it_away",
    "a_hook_keeps_what_has_been_accumulated",
    "a_hook_takes_gradients_away_that_only_add_up",
    "a_pass_of_one_rank_alone_is_its_own",
    "gradients_of_a_foreign_pass_are_added_to_as_they_are",
    "other_parameters_on_each_rank_stand_in_for_the_parameters",
    "tensors_are_made_on_another_device_unless_they_say_where",
    "the_wrapper_is_a_part_that_is_computed_again",
}


def program(function: Callable[[Wrap], Any]) -> Callable[[Wrap], Any]:
    PROGRAMS[function.__name__] = function
    return function


def run_all(rendezvous: str, more: Sequence[str]) -> dict[str, str]:
    """On every rank: for each program what is wrong with its answer, empty if nothing is. ``more``: modules with programs."""
    for name in more:
        importlib.import_module(name)
    torch.set_num_threads(1)
    shoal.torch.init()
    dist.init_process_group("gloo", init_method=rendezvous, rank=shoal.rank(), world_size=shoal.size())
    outcomes = {name: compared(name, function) for name, function in PROGRAMS.items()}
    dist.destroy_process_group()
    return outcomes


def compared(name: str, function: Callable[[Wrap], Any]) -> str:
    answers = []
    for wrap in (DistributedDataParallel, nn.parallel.DistributedDataParallel):
        torch.manual_seed(0)
        try:
            answers.append(numbers(function(wrap)))
        except Exception:
            answers.append(traceback.format_exc())
        shoal.barrier()
    ours, theirs = answers
    everyone: list[Any] = [None] * shoal.size()
    dist.all_gather_object(everyone, ours)
    if ours != theirs:
        return f"Shoal: {ours}\nPyTorch: {theirs}"
    if name not in OF_EACH_RANK and any(other != ours for other in everyone):
        return f"ranks differ: {everyone}"
    return ""


def numbers(answer: Any) -> Any:
    """Rounded, so that sums of another order are the same."""
    if isinstance(answer, Tensor):
        answer = answer.tolist()
    if isinstance(answer, (list, tuple)):
        return [numbers(each) for each in answer]
    return round(answer, 4) if isinstance(answer, float) else answer


def line(weight: float = 1.0) -> nn.Linear:
    """y = weight · x: the gradient of the weight is x."""
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(weight)
    return module


def lines(count: int = 2) -> nn.Sequential:
    return nn.Sequential(*[line() for _ in range(count)])


def x(factor: float = 1.0) -> Tensor:
    """Another number on each rank: 1, 2, ..."""
    return torch.full((1, 1), factor * (shoal.rank() + 1))


def gradients(module: nn.Module) -> list[float | None]:
    return [None if each.grad is None else each.grad.item() for each in module.parameters()]


def steps(wrap: Wrap, between: Callable[[list[nn.Parameter]], None], count: int = 3, **arguments: Any) -> list[Any]:
    """The gradients after each of some passes; ``between``: what the program does to the parameters before all but the first."""
    model = wrap(lines(), **arguments)
    found = []
    for step in range(count):
        if step:
            between(list(model.parameters()))
        model(x()).sum().backward()
        found.append(gradients(model))
    return found


# --- Hooks ---


@program
def a_hook_that_is_registered_after_wrapping_comes_before_averaging(wrap: Wrap) -> Any:
    model = wrap(line())

    def clip(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = parameter.grad.clamp(-1.5, 1.5)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clip)
    found = []
    for _ in range(2):
        model.zero_grad()
        model(x()).sum().backward()
        found.append(gradients(model))
    return found


@program
def a_hook_that_writes_in_place(wrap: Wrap) -> Any:
    model = wrap(lines())
    found = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: each.grad.mul_(2) and None)
    for set_to_none in (True, True, False):
        model.zero_grad(set_to_none)
        model(x()).sum().backward()
        found.append(gradients(model))
    return found


@program
def a_hook_on_the_gradient(wrap: Wrap) -> Any:
    model = wrap(lines())
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 3)
    model(x()).sum().backward()
    return gradients(model)


@program
def a_hook_that_keeps_gradients_finds_the_means_in_them(wrap: Wrap) -> Any:
    model = wrap(lines())
    kept: list[Tensor] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: kept.append(each.grad))
    found = []
    for _ in range(2):
        model.zero_grad()
        kept.clear()
        model(x()).sum().backward()
        found.append([gradient.item() for gradient in kept])
    return found


@program
def a_hook_that_takes_the_gradient_away(wrap: Wrap) -> Any:
    model = wrap(lines())

    def take(parameter: Tensor) -> None:
        parameter.grad = None

    model.module[0].weight.register_post_accumulate_grad_hook(take)
    model(x()).sum().backward()
    return gradients(model)


# --- Gradients that are not where they were left ---


@program
def gradients_get_other_data(wrap: Wrap) -> Any:
    def change(parameters: list[nn.Parameter]) -> None:
        for each in parameters:
            each.grad.data = torch.full_like(each, 10.0 * (shoal.rank() + 1))

    return steps(wrap, change)


@program
def gradients_are_set_to_other_memory(wrap: Wrap) -> Any:
    def change(parameters: list[nn.Parameter]) -> None:
        for each in parameters:
            each.grad.set_(torch.full_like(each, 5.0 * (shoal.rank() + 1)))

    return steps(wrap, change)


@program
def gradients_are_swapped(wrap: Wrap) -> Any:
    def swap(parameters: list[nn.Parameter]) -> None:
        a, b = parameters
        a.grad *= 2
        a.grad, b.grad = b.grad, a.grad

    return steps(wrap, swap, 5)


@program
def two_parameters_have_the_same_gradient(wrap: Wrap) -> Any:
    def alias(parameters: list[nn.Parameter]) -> None:
        a, b = parameters
        a.grad = b.grad

    return steps(wrap, alias, 4)


@program
def a_gradient_moves_to_another_parameter(wrap: Wrap) -> Any:
    def move(parameters: list[nn.Parameter]) -> None:
        a, b = parameters
        a.grad, b.grad = None, a.grad

    return steps(wrap, move, 4)


@program
def gradients_are_copied_shared_or_viewed(wrap: Wrap) -> Any:
    def clone(each: nn.Parameter) -> None:
        each.grad = each.grad.clone()

    def view(each: nn.Parameter) -> None:
        each.grad = each.grad.view(-1)[:].view(1, 1)

    def share(each: nn.Parameter) -> None:
        each.grad.share_memory_()

    def detach(each: nn.Parameter) -> None:
        each.grad.detach_()
        each.grad.zero_()

    def add(each: nn.Parameter) -> None:
        each.grad = each.grad + 1

    def delete(each: nn.Parameter) -> None:
        del each.grad

    def replace(each: nn.Parameter) -> None:
        each.data = each.data.clone()

    changes = (clone, view, share, detach, add, delete, replace)
    return [steps(wrap, lambda every, change=change: [change(each) for each in every]) for change in changes]


@program
def gradients_that_are_kept_keep_their_values(wrap: Wrap) -> Any:
    model = wrap(lines())
    kept: list[Any] = []
    for step in range(4):
        model.zero_grad(set_to_none=True)
        model(x(step + 1.0)).sum().backward()
        for ways in (lambda g: g, lambda g: g.detach(), lambda g: g.view(-1), lambda g: g.detach().numpy()):
            kept.extend(ways(each.grad) for each in model.parameters())
    return [float(each) for each in kept]


@program
def gradients_that_lie_in_memory_of_the_program(wrap: Wrap) -> Any:
    model = wrap(lines())
    flat = torch.zeros(2)
    for number, each in enumerate(model.parameters()):
        each.grad = flat[number].view(1, 1)
    found = []
    for _ in range(3):
        flat.zero_()
        model(x()).sum().backward()
        found.append([flat.tolist(), gradients(model)])
    return found


@program
def a_list_of_gradients_that_is_cleared_in_each_step(wrap: Wrap) -> Any:
    model = wrap(lines())
    model(x()).sum().backward()
    listed = [each.grad for each in model.parameters()]
    found = []
    for _ in range(102):  # at one of them the order of the gradients is looked at
        for gradient in listed:
            gradient.zero_()
        model(x()).sum().backward()
        found.append([gradient.item() for gradient in listed])
    return [found[0], found[-1], gradients(model)]


# --- Passes of the program's own ---


@program
def a_pass_of_one_rank_alone_is_its_own(wrap: Wrap) -> Any:
    model = wrap(lines())
    model(x()).sum().backward()
    saliency = None
    if shoal.rank() == 0:
        image = torch.ones(1, 1, requires_grad=True)
        model.module(image).sum().backward()
        saliency = image.grad.item()
    return [saliency, gradients(model)]


@program
def gradients_of_a_foreign_pass_are_added_to_as_they_are(wrap: Wrap) -> Any:
    model = wrap(lines())
    found = []
    for _ in range(2):
        model.zero_grad()
        model(x()).sum().backward()
        model.module[0].weight.pow(2).sum().mul(shoal.rank() + 1.0).backward()
        found.append(gradients(model))
    return found


@program
def what_a_foreign_pass_has_left_is_averaged_with_the_next(wrap: Wrap) -> Any:
    found = []
    for find_unused in (False, True):
        model = wrap(lines(), find_unused_parameters=find_unused)
        model(x()).sum().backward()
        for step in range(3):
            if step == 1:
                model.zero_grad()
            model.module(x(2.0)).sum().backward()
            model(x()).sum().backward()
            found.append(gradients(model))
    return found


@program
def gradients_with_respect_to_inputs_alone(wrap: Wrap) -> Any:
    model = wrap(lines())
    found = []
    for _ in range(2):
        image = torch.ones(1, 1, requires_grad=True)
        model(image).sum().backward(inputs=[image])
        found.append([image.grad.item(), gradients(model)])
        model.zero_grad()
        model(x()).sum().backward()
        found.append(gradients(model))
    return found


@program
def a_forward_pass_inside_and_one_outside_of_no_sync_in_one_backward_pass(wrap: Wrap) -> Any:
    model = wrap(lines())
    outside = model(x()).sum()
    with model.no_sync():
        inside = model(x(2.0)).sum()
    (outside + inside).backward()
    return gradients(model)


@program
def a_backward_pass_inside_no_sync_of_a_forward_pass_outside_is_averaged(wrap: Wrap) -> Any:
    model = wrap(lines())
    loss = model(x()).sum()
    with model.no_sync():
        loss.backward()
    return gradients(model)


# --- Evaluation ---


@program
def ranks_evaluate_with_the_same_statistics(wrap: Wrap) -> Any:
    model = wrap(nn.Sequential(line(), nn.BatchNorm1d(1)))
    found = []
    for step in range(2):
        model.train()
        model(torch.arange(4.0).view(4, 1) * (shoal.rank() + 1 + step)).sum().backward()
        model.eval()
        with torch.no_grad():
            found.append([model(torch.ones(1, 1)), model.module[1].running_mean, model.module[1].running_var])
        found[-1] = numbers(found[-1])
    return found


@program
def the_first_forward_pass_of_all_may_be_one_of_evaluation(wrap: Wrap) -> Any:
    model = wrap(nn.Sequential(line(), nn.BatchNorm1d(1)))
    model.module[1].running_mean.fill_(shoal.rank())
    model.eval()
    with torch.no_grad():
        return model(torch.ones(1, 1))


# --- Frozen parameters ---


@program
def a_discriminator_is_frozen_while_the_generator_is_trained(wrap: Wrap) -> Any:
    generator, discriminator = wrap(lines()), wrap(lines())
    found = []
    for _ in range(4):
        generator.zero_grad()
        discriminator.zero_grad()
        for each in discriminator.parameters():
            each.requires_grad_(False)
        discriminator(generator(x())).sum().backward()
        found.append([gradients(generator), gradients(discriminator)])
        for each in discriminator.parameters():
            each.requires_grad_(True)
        discriminator(x(2.0)).sum().backward()
        found.append([gradients(generator), gradients(discriminator)])
    return found


@program
def a_parameter_is_frozen_and_thawed_in_each_step(wrap: Wrap) -> Any:
    model = wrap(lines(3), find_unused_parameters=True)
    found = []
    for step in range(6):
        if step % 3 == 0:
            model.zero_grad(set_to_none=step == 0)
        model.module[1].weight.requires_grad_(step % 2 == 1)
        model(x(step + 1.0)).sum().backward()
        found.append(gradients(model))
    return found


@program
def a_graph_that_is_older_than_the_freezing_is_averaged(wrap: Wrap) -> Any:
    model = wrap(lines())
    loss = model(x()).sum()
    for each in model.parameters():
        each.requires_grad_(False)
    image = torch.ones(1, 1, requires_grad=True)
    model(image).sum().backward()
    for each in model.parameters():
        each.requires_grad_(True)
    loss.backward()
    return gradients(model)


# --- Several wrappers ---


class Head(nn.Module):
    def __init__(self, encoder: nn.Module, weight: float) -> None:
        super().__init__()
        self.encoder, self.head = encoder, line(weight)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(value))
        return out


@program
def two_heads_on_one_encoder(wrap: Wrap) -> Any:
    found = []
    for set_to_none in (True, False):
        for find_unused in (True, False):
            encoder = line()
            heads = [wrap(Head(encoder, weight), find_unused_parameters=find_unused) for weight in (2.0, 3.0)]
            for together in (True, False, True):
                for head in heads:
                    head.zero_grad(set_to_none)
                if together:
                    (heads[0](x()) + heads[1](x())).sum().backward()
                    found.append([gradients(head) for head in heads])
                else:
                    for head in heads:
                        head.zero_grad(set_to_none)
                        head(x()).sum().backward()
                        found.append(gradients(head))
    return found


@program
def a_module_that_is_wrapped_twice(wrap: Wrap) -> Any:
    module = line()
    wrappers = [wrap(module), wrap(module)]
    found = []
    for step in range(4):
        module.zero_grad()
        wrappers[step % 2](x()).sum().backward()
        found.append(gradients(module))
    return found


@program
def a_wrapped_module_that_is_wrapped(wrap: Wrap) -> Any:
    module = lines()
    model = wrap(wrap(module))
    found = []
    for set_to_none in (True, True, False, False):
        module.zero_grad(set_to_none)
        model(x()).sum().backward()
        found.append(gradients(module))
    return found


@program
def a_part_that_is_wrapped_as_well(wrap: Wrap) -> Any:
    module = nn.Sequential(wrap(line()), line(2.0))
    model = wrap(module)
    found = []
    for _ in range(3):
        module.zero_grad()
        model(x()).sum().backward()
        found.append(gradients(module))
    return found


# --- Copies and stand-ins ---


@program
def copies_are_trained_too(wrap: Wrap) -> Any:
    model = wrap(nn.Sequential(line(), nn.BatchNorm1d(1)))
    model(torch.arange(4.0).view(4, 1) * (shoal.rank() + 1)).pow(2).sum().backward()
    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    found = []
    for each in (copied, loaded):
        assert type(each) is type(model)
        for step in range(2):
            each.zero_grad()
            each(torch.arange(4.0).view(4, 1) * (shoal.rank() + 1 + step)).pow(2).sum().backward()
            found.append(gradients(each))
    return found


@program
def states_for_distributed_checkpoints_go_between_wrappers(wrap: Wrap) -> Any:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def inside(model: nn.Module) -> Any:
        """What these functions are given: they know PyTorch's wrapper and no other."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        optimizer.zero_grad()
        model(x()).sum().backward()
        optimizer.step()
        return list(model.parameters())

    model = wrap(lines())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trained(model, optimizer)
    of_model, of_optimizer = copy.deepcopy(get_state_dict(inside(model), optimizer))
    found = [list(of_model), sorted(of_optimizer["state"]), trained(model, optimizer)]
    for wrap_again in (DistributedDataParallel, nn.parallel.DistributedDataParallel):
        again = wrap_again(lines())
        optimizer = torch.optim.Adam(again.parameters(), lr=0.1)
        state = copy.deepcopy({"model_state_dict": of_model, "optim_state_dict": of_optimizer})
        set_state_dict(inside(again), optimizer, **state)
        found.append(trained(again, optimizer))
    assert numbers(found[2]) == numbers(found[3]) == numbers(found[4])
    return found


@program
def an_average_of_models(wrap: Wrap) -> Any:
    model = wrap(lines())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        optimizer.zero_grad()
        model(x()).sum().backward()
        optimizer.step()
        average.update_parameters(model)
    with torch.no_grad():
        return average(torch.ones(1, 1))
