"""Scenarios of shoal.torch for 3 ranks: which passes are averaged, frozen parameters, and gradients that the program holds.

What PyTorch's own wrapper has an answer to is in torch_programs.py.
"""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_scenarios import TINY_MB, expected_gradients, inputs, loss_of, mlp, step_is_right

import shoal
from shoal.torch import DistributedDataParallel
from shoal.torch.managed_parameters import FROZEN_FOR_GOOD

SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def addresses(model: nn.Module) -> list[int]:
    return [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]


@scenario
def rank_0_may_evaluate_alone() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    for step in range(3):
        model.train()
        step_is_right_in_batches(model, step)
        if shoal.rank() == 0:
            model.eval()
            with torch.no_grad():
                model(inputs(0, step))
        shoal.barrier()


def step_is_right_in_batches(model: DistributedDataParallel, step: int) -> None:
    """Statistics of the batch alone count in training, so every rank's reference is right whatever its buffers."""
    expected = expected_gradients(model.module, lambda module, rank: loss_of(module, rank, step))
    model.zero_grad()
    loss_of(model, shoal.rank(), step).backward()
    for name, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)


class Hidden:
    """An output that nobody looks into."""

    __slots__ = ("value",)

    def __init__(self, value: Tensor) -> None:
        self.value = value


@scenario
def an_output_that_cannot_be_seen_is_averaged_all_the_same() -> None:
    class Hiding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Hidden:
            return Hidden(self.inner(x))

    def loss(module: nn.Module, rank: int) -> Tensor:
        out: Tensor = module(inputs(rank)).value.square().sum()
        return out

    model = DistributedDataParallel(Hiding(), fusion_mb=TINY_MB)
    for _ in range(3):
        step_is_right(model, loss)
        # Nothing is awaited any more: this is the program's own.
        if shoal.rank() == 1:
            loss(model.module, 1).backward()


@scenario
def a_hook_that_comes_after_averaging_is_an_error_that_names_the_parameter() -> None:
    module = mlp()
    model = DistributedDataParallel(module)
    step_is_right(model)
    accumulator = torch.autograd.graph.get_gradient_edge(module[0].weight).node

    weight = module[4].weight

    def change_another(*_: object) -> None:
        weight.grad.mul_(2)

    def change_and_clear(*_: object) -> None:
        weight.grad.mul_(2)
        weight.grad = None

    def change_and_replace(*_: object) -> None:
        weight.grad.mul_(2)
        weight.grad = weight.grad.clone()

    for hook in (change_another, change_and_clear, change_and_replace):
        late = accumulator.register_hook(hook)
        with pytest.raises(shoal.ShoalError, match=r"rank \d .*4\.weight was written to while it was being averaged"):
            loss_of(model, shoal.rank()).backward()
        late.remove()
        step_is_right(model)

    # What was taken from a parameter is given to one whose own gradient is still to be added to it.
    layers = nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)])
    model = DistributedDataParallel(layers)
    step_is_right(model)

    def give(parameter: Tensor) -> None:
        layers[0].weight.grad, parameter.grad = parameter.grad, None

    model.zero_grad(set_to_none=False)
    late = layers[2].weight.register_post_accumulate_grad_hook(give)
    with pytest.raises(shoal.ShoalError, match=r"rank \d .*2\.weight was written to while it was being averaged"):
        loss_of(model, shoal.rank()).backward()
    late.remove()
    step_is_right(model)


@scenario
def freezing_in_each_step_needs_no_other_memory_and_sends_no_frozen_buffers() -> None:
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(4)]), fusion_mb=1 / 64)

    def loss(module: nn.Module, rank: int) -> Tensor:
        out: Tensor = module(inputs(rank, width=64)).square().mean()
        return out

    step_is_right(model, loss)
    where = addresses(model)
    arenas = model._reducer.arenas
    for step in range(6):
        for layer in (0, 1):
            model.module[layer].weight.requires_grad_(step % 2 == 1)
        before = model.get_ddp_logging_data()
        step_is_right(model, loss)
        cost = model.get_ddp_logging_data() - before
        assert cost.bytes == (4 if step % 2 else 2) * 64 * 64 * 4
        assert addresses(model) == (where if step % 2 else where[2:])
    assert model._reducer.arenas is arenas
    assert model.get_ddp_logging_data().order_renewals == 0


@scenario
def what_is_frozen_for_good_leaves_the_arena() -> None:
    model = DistributedDataParallel(mlp())
    step_is_right(model)
    for index in (0, 4):
        model.module[index].weight.requires_grad_(False)
    everything = model._reducer.arenas.nbytes
    trained = [parameter.nbytes for parameter in model.parameters() if parameter.requires_grad]
    for step in range(FROZEN_FOR_GOOD + 2):
        before = model.get_ddp_logging_data()
        step_is_right(model)
        sent = (model.get_ddp_logging_data() - before).bytes
        if step < FROZEN_FOR_GOOD:
            assert sent == everything
        else:
            assert sum(trained) <= sent < sum(trained) + 64 * len(trained)
    for index in (0, 4):
        model.module[index].weight.requires_grad_(True)
    step_is_right(model)


@scenario
def a_frozen_gradient_stays_as_it_is() -> None:
    model = DistributedDataParallel(mlp())
    step_is_right(model)
    frozen = model.module[2].weight
    frozen.requires_grad_(False)
    kept = frozen.grad.clone()
    for _ in range(2):
        loss_of(model, shoal.rank(), 1).backward()
        assert torch.equal(frozen.grad, kept)


@scenario
def gradients_that_are_kept_cost_new_memory_once() -> None:
    model = DistributedDataParallel(mlp())
    kept: list[list[Tensor]] = []
    arenas: list[int] = []
    for step in range(4):
        model.zero_grad()
        loss_of(model, shoal.rank(), step).backward()
        kept.append([parameter.grad.detach() for parameter in model.parameters()])
        arenas.append(model._reducer.arenas.buffers[0].memory.data_ptr())
    assert arenas[0] != arenas[1] == arenas[2] == arenas[3]
    for step, gradients in enumerate(kept):
        expected = expected_gradients(model.module, lambda module, rank, step=step: loss_of(module, rank, step))
        for gradient, wanted in zip(gradients, expected.values(), strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


@scenario
def gradients_may_have_a_dtype_of_their_own() -> None:
    if not hasattr(torch.Tensor, "grad_dtype"):
        return
    model_16 = mlp().to(torch.bfloat16)
    for parameter in model_16.parameters():
        parameter.grad_dtype = torch.float32
    model = DistributedDataParallel(model_16)
    for _ in range(2):
        model.zero_grad()
        model(inputs(shoal.rank()).bfloat16()).float().square().sum().backward()
        own = copy.deepcopy(model.module)
        assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
        of_all = [shoal.allgather(parameter.grad.reshape(1, -1)) for parameter in model.parameters()]
        assert all(torch.equal(each[0], each[rank]) for each in of_all for rank in (1, 2))
        assert all(parameter.dtype == torch.bfloat16 for parameter in own.parameters())


@scenario
def an_optimizer_that_steps_inside_the_backward_pass_is_refused() -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward

    module = mlp()
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    with pytest.raises(shoal.ConfigurationError, match=r"0\.weight has an optimizer that steps inside"):
        DistributedDataParallel(module)


@scenario
def gradients_in_the_arena_refuse_to_be_resized() -> None:
    model = DistributedDataParallel(mlp())
    step_is_right(model)
    for parameter in model.parameters():
        before = parameter.grad.clone()
        for resize in (lambda p: p.grad.untyped_storage().resize_(0), lambda p: p.grad.resize_(2 * p.numel())):
            with pytest.raises(RuntimeError, match="not resizable"):
                resize(parameter)
        # PyTorch gives a tensor its new sizes before it asks the storage.
        assert torch.equal(parameter.grad.resize_(before.shape), before)
    step_is_right(model)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.clone()
        parameter.grad.untyped_storage().resize_(0)
    step_is_right(model)


@scenario
def a_copy_meets_the_others_when_it_is_trained() -> None:
    model = DistributedDataParallel(mlp(), find_unused_parameters=True, bucket_cap_mb=TINY_MB)
    step_is_right(model)
    if shoal.rank() == 0:
        alone = copy.deepcopy(model)
        with torch.no_grad():
            alone(inputs(0))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for each in (copy.deepcopy(model), loaded):
        assert each.find_unused_parameters
        assert each.get_ddp_logging_data().passes == 0
        step_is_right(each)
        assert each.get_ddp_logging_data().operations > 4
    step_is_right(model)


@scenario
def a_copy_that_one_rank_evaluates_alone_is_no_concern_of_others() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    pair = shoal.Group([0, 1], name="evaluated")
    of_two = DistributedDataParallel(nn.BatchNorm1d(6), process_group=pair) if pair.rank is not None else None
    step_is_right_in_batches(model, 0)
    # Rank 0 would send its buffers to nobody, rank 1 would wait for them for ever.
    for _ in range(shoal.rank() + 1 if shoal.rank() < 2 else 0):
        alone = copy.deepcopy(model)
        statistics = [buffer.clone() for buffer in alone.buffers()]
        alone.eval()
        with torch.no_grad():
            alone(inputs(0))
        alone.requires_grad_(False)
        alone(inputs(0))
        assert alone.get_ddp_logging_data().passes == 0
        assert alone.process_group is model.process_group
        assert all(map(torch.equal, alone.buffers(), statistics))
    if shoal.rank() == 0:
        assert copy.deepcopy(of_two).process_group.ranks == (0, 1)
        # It begins as if it was trained, which other copies for the same ranks would notice, but no wrapper.
        copy.deepcopy(of_two)(inputs(0))
    wrapped_later = DistributedDataParallel(copy.deepcopy(model.module))
    step_is_right_in_batches(wrapped_later, 1)
    step_is_right_in_batches(model, 1)
    if of_two is not None:
        again = DistributedDataParallel(nn.BatchNorm1d(6), process_group=of_two.process_group)
        (again(inputs(shoal.rank())) * shoal.rank()).sum().backward()
        assert again.module.bias.grad.tolist() == [2.5] * 6


@scenario
def copies_of_all_ranks_begin_with_the_buffers_of_the_first() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    step_is_right_in_batches(model, 0)
    copied = copy.deepcopy(model)
    copied.eval()
    with torch.no_grad():
        copied(inputs(0))
    copied.train()
    step_is_right_in_batches(copied, 1)
    before = copied.module[1].running_mean.clone()
    copied.eval()
    with torch.no_grad():
        copied(inputs(0))
    everyone = shoal.allgather(copied.module[1].running_mean.view(1, -1))
    assert all(map(torch.equal, everyone, everyone[:1].expand_as(everyone)))
    assert shoal.rank() > 0 or torch.equal(before, everyone[0])


@scenario
def a_copy_has_the_ranks_of_its_original() -> None:
    group = shoal.Group([0, 2], name="copied")
    if group.rank is None:
        return
    model = copy.deepcopy(DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=group))
    model(torch.full((1, 1), float(shoal.rank()))).sum().backward()
    assert model.module.weight.grad.item() == 1.0
    assert model.process_group.ranks == (0, 2)


@scenario
def a_shared_parameter_is_free_again_when_a_wrapper_is_gone() -> None:
    module = mlp()
    first, second = (DistributedDataParallel(module) for _ in range(2))
    step_is_right(first)
    own = {parameter.data_ptr() for parameter in module.parameters()}
    assert own.isdisjoint(addresses(first))
    del second
    for _ in range(2):
        step_is_right(first)
    memory = first._reducer.arenas.buffers[0].memory
    inside = range(memory.data_ptr(), memory.data_ptr() + memory.nbytes)
    assert all(address in inside for address in addresses(first))
