"""Scenarios of shoal.torch for 3 ranks that do not have the same number of steps: DistributedDataParallel.join."""

import copy
import os
import signal
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch_scenarios import TINY_MB, Branches, branch_loss, inputs, mlp, step_is_right

import shoal
import shoal.torch
from shoal.torch import DistributedDataParallel

SCENARIOS: dict[str, Callable[[], None]] = {}

# Steps by rank: another rank is the last each time, and rank 0 the first to run out, before its first step even.
UNEVEN = ((2, 5, 3), (0, 1, 4), (6, 2, 2), (3, 0, 3))

Loss = Callable[[nn.Module, int, int], Tensor]


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    loss: Tensor = model(inputs(rank, step)).square().mean()
    return loss


def branches_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return branch_loss(lambda _: "ab" if (rank + step) % 2 else "a")(model, rank) / 100


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))


def train(model: DistributedDataParallel, steps: Sequence[int], loss: Loss, **options: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with model.join(**options):
        for step in range(steps[shoal.rank()]):
            optimizer.zero_grad()
            loss(model, shoal.rank(), step).backward()
            optimizer.step()


def trained_alone(module: nn.Module, steps: Sequence[int], loss: Loss, divide_by_all: bool) -> nn.Module:
    """One process that does what all ranks together should."""
    alone = copy.deepcopy(module)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(max(steps)):
        left = [rank for rank, count in enumerate(steps) if step < count]
        optimizer.zero_grad()
        for rank in left:
            (loss(alone, rank, step) / (len(steps) if divide_by_all else len(left))).backward()
        optimizer.step()
    return alone


def assert_same_bits_everywhere(module: nn.Module) -> None:
    values = torch.cat([tensor.detach().double().reshape(-1) for tensor in module.state_dict().values()])
    everyone = shoal.allgather(values.view(1, -1))
    assert torch.equal(everyone[0], everyone[1])
    assert torch.equal(everyone[0], everyone[2])


def assert_trains_as_one_process(find_unused: bool, loss: Loss, make: Callable[[], nn.Module]) -> None:
    for steps in UNEVEN:
        for divide_by_all in (True, False):
            model = DistributedDataParallel(make(), find_unused_parameters=find_unused, fusion_mb=TINY_MB)
            before = copy.deepcopy(model.module)
            alone = trained_alone(before, steps, loss, divide_by_all)
            train(model, steps, loss, divide_by_initial_world_size=divide_by_all)
            assert_same_bits_everywhere(model.module)
            pairs = zip(model.module.parameters(), alone.parameters(), before.parameters(), strict=True)
            for parameter, wanted, initial in pairs:
                torch.testing.assert_close(parameter, wanted, rtol=1e-4, atol=1e-6)
                assert loss is branches_loss or not torch.equal(initial, wanted), "nothing was trained"
            step_is_right(model, lambda module, rank: loss(module, rank, 100))


@scenario
def ranks_that_run_out_leave_the_model_of_the_others() -> None:
    assert_trains_as_one_process(False, loss_of, mlp)


@scenario
def ranks_that_run_out_where_parameters_are_unused() -> None:
    assert_trains_as_one_process(True, branches_loss, Branches)


@scenario
def buffers_are_those_of_a_rank_that_is_left() -> None:
    """Momentum 1 makes the running mean that of the last batch: the last rank's."""
    for broadcast_buffers in (True, False):
        module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=1.0))
        model = DistributedDataParallel(module, broadcast_buffers=broadcast_buffers)
        train(model, (2, 5, 3), loss_of)
        counted = shoal.allgather(module[1].num_batches_tracked.view(1)).tolist()
        assert counted == ([5, 5, 5] if broadcast_buffers else [2, 5, 3])
        means = shoal.allgather(module[1].running_mean.view(1, -1))
        assert torch.equal(means[0], means[1]) == broadcast_buffers
        assert_same_bits_everywhere(nn.ParameterList(module.parameters()))


@scenario
def with_even_inputs_join_changes_no_bit() -> None:
    digests = []
    for enable in (True, False):
        torch.manual_seed(3)
        model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
        train(model, (4, 4, 4), loss_of, enable=enable, divide_by_initial_world_size=False)
        assert_same_bits_everywhere(model.module)
        digests.append(torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]))
    assert torch.equal(digests[0], digests[1])


@scenario
def gradients_may_be_accumulated_inside_join() -> None:
    steps = (1, 3, 2)

    def in_two_parts(model: nn.Module, rank: int, step: int) -> Tensor:
        if not isinstance(model, DistributedDataParallel):
            return loss_of(model, rank, step) + loss_of(model, rank, 50 + step)
        with model.no_sync():
            loss_of(model, rank, step).backward()
        return loss_of(model, rank, 50 + step)

    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    alone = trained_alone(model.module, steps, in_two_parts, divide_by_all=True)
    train(model, steps, in_two_parts)
    assert_same_bits_everywhere(model.module)
    for parameter, wanted in zip(model.module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-4, atol=1e-6)


@scenario
def two_forward_passes_before_one_backward_pass_inside_join() -> None:
    def twice(model: nn.Module, rank: int, step: int) -> Tensor:
        return loss_of(model, rank, step) + loss_of(model, rank, 50 + step)

    for make in (mlp, normalised):
        model = DistributedDataParallel(make())
        train(model, (1, 3, 2), twice)
        assert_same_bits_everywhere(model.module)


@scenario
def an_early_end_is_an_error_on_every_rank_where_that_was_asked_for() -> None:
    model = DistributedDataParallel(mlp())
    begun: list[int] = []

    def steps(count: int) -> None:
        with model.join(throw_on_early_termination=True):
            for step in range(count):
                output = model(inputs(shoal.rank(), step))
                begun.append(step)
                output.square().sum().backward()

    with pytest.raises(shoal.ShoalError, match=r"rank 0 .*has run out of inputs while rank 1 .*throw_on_early_term"):
        steps((2, 5, 3)[shoal.rank()])
    assert begun == [0, 1], "the error should come before the forward pass that not all ranks make"
    step_is_right(model)
    steps(2)


def fail(*_: object) -> None:
    raise ValueError("no such thing")


@scenario
def a_rank_that_leaves_with_an_error_is_named_on_every_other() -> None:
    """In its own code, and in the middle of a backward pass; others are in a step, or have run out (rank 0)."""

    def steps(model: DistributedDataParallel, in_backward: bool) -> None:
        with model.join():
            for step in range((2, 5, 5)[shoal.rank()]):
                loss = loss_of(model, shoal.rank(), step)
                if step == 3 and shoal.rank() == 1:
                    if not in_backward:
                        fail()
                    model.module[0].register_full_backward_pre_hook(fail)
                loss.backward()

    for in_backward in (False, True):
        for make in (mlp, normalised):
            model = DistributedDataParallel(make(), fusion_mb=TINY_MB)
            with pytest.raises((ValueError, shoal.ShoalError), match=r"^no such thing|rank 1 \(") as caught:
                steps(model, in_backward)
            assert (caught.type is ValueError) == (shoal.rank() == 1)
            model.module[0]._backward_pre_hooks.clear()
            for _ in range(2):
                step_is_right(model)
            train(model, (2, 3, 1), loss_of)
            assert_same_bits_everywhere(model.module)


@scenario
def steps_that_differ_are_told_on_every_rank() -> None:
    model = DistributedDataParallel(normalised())

    def steps(count: int) -> None:
        with model.join():
            for step in range(count):
                loss = loss_of(model, shoal.rank(), step)
                if (shoal.rank(), step) != (2, 2):
                    loss.backward()

    with pytest.raises(shoal.Mismatch, match=r"rank 1 .*averages gradients where rank 2 .*broadcasts buffers"):
        steps((1, 3, 4)[shoal.rank()])
    step_is_right(model)


@scenario
def join_is_not_entered_twice() -> None:
    model = DistributedDataParallel(mlp())
    with model.join():
        with pytest.raises(shoal.ShoalError, match="on already"), model.join():
            pass
        loss_of(model, shoal.rank(), 0).backward()
    step_is_right(model)


def killed(moment: str) -> None:
    """Rank 0 has run out when rank 1 kills itself: before a step, or in its backward pass."""
    torch.set_num_threads(1)
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with model.join():
        for step in range((2, 100, 100)[shoal.rank()]):
            if step == 5 and shoal.rank() == 1:
                if moment == "before a step":
                    die()
                model.module[2].weight.register_post_accumulate_grad_hook(die)
            loss_of(model, shoal.rank(), step).backward()
