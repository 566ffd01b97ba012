"""Scenarios of shoal.torch for 3 ranks: functions that every rank runs, one after the other in one job.

A scenario asserts on every rank what must hold. test_torch_gradients.py runs them and says which failed where.
"""

import copy
import gc
import traceback
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import shoal
import shoal.torch
from shoal.torch import DistributedDataParallel

SCENARIOS: dict[str, Callable[[], None]] = {}

# Buffers of 256 bytes: many, and smaller than most parameters.
TINY_MB = 256 / 2**20

Forward = Callable[[nn.Module, int], Tensor]


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def run_each(scenarios: dict[str, Callable[[], None]]) -> dict[str, str]:
    """On every rank: the traceback of each scenario, empty if it holds."""
    torch.set_num_threads(1)
    shoal.torch.init()
    return {name: run(function) for name, function in scenarios.items()}


def run(function: Callable[[], None]) -> str:
    torch.manual_seed(shoal.rank())
    try:
        function()
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return ""


def inputs(rank: int, step: int = 0, width: int = 6) -> Tensor:
    return torch.randn(5, width, generator=torch.Generator().manual_seed(100 * step + rank))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2))


def loss_of(model: nn.Module, rank: int, step: int = 0) -> Tensor:
    loss: Tensor = model(inputs(rank, step)).square().sum()
    return loss


def expected_gradients(module: nn.Module, forward: Forward = loss_of) -> dict[str, Tensor | None]:
    """The mean over all ranks of the gradients of ``forward(module, rank)``: None where no rank has one."""
    total: dict[str, Tensor | None] = {}
    for rank in range(shoal.size()):
        reference = copy.deepcopy(module)
        forward(reference, rank).backward()
        for name, parameter in reference.named_parameters():
            if parameter.grad is not None:
                before = total.get(name)
                total[name] = parameter.grad if before is None else before + parameter.grad
    return {
        name: None if (gradient := total.get(name)) is None else gradient / shoal.size()
        for name, _ in module.named_parameters()
    }


def assert_gradients(model: DistributedDataParallel, expected: dict[str, Tensor | None]) -> None:
    for name, parameter in model.module.named_parameters():
        want = expected[name]
        if want is None:
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            torch.testing.assert_close(
                parameter.grad, want, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
            )


def step_is_right(model: DistributedDataParallel, forward: Forward = loss_of) -> None:
    """One step from cleared gradients leaves the means."""
    model.zero_grad()
    expected = expected_gradients(model.module, forward)
    forward(model, shoal.rank()).backward()
    assert_gradients(model, expected)


class Branches(nn.Module):
    """``forward`` runs the named branches one after the other, so gradients arrive in the opposite order."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({name: nn.Linear(6, 6) for name in "abc"})

    def forward(self, x: Tensor, order: str = "abc") -> dict[str, list[Tensor]]:
        for name in order:
            x = torch.tanh(self.branches[name](x))
        return {"nested": [x]}


def branch_loss(order_of: Callable[[int], str]) -> Forward:
    return lambda model, rank: model(inputs(rank), order_of(rank))["nested"][0].square().sum()


@scenario
def all_ranks_begin_with_rank_0s_parameters_and_buffers() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    module[1].running_mean.fill_(shoal.rank())
    torch.manual_seed(0)
    first = nn.Linear(6, 4)
    model = DistributedDataParallel(module)
    assert torch.equal(model.module[0].weight, first.weight)
    assert torch.equal(model.module[1].running_mean, torch.zeros(4))
    assert set(model.state_dict()) == {f"module.{name}" for name in module.state_dict()}


@scenario
def gradients_are_means_whichever_way_they_are_cleared() -> None:
    for set_to_none in (True, False):
        model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
        addresses: set[tuple[int, ...]] = set()
        for step in range(4):
            model.zero_grad(set_to_none=set_to_none)

            def forward(module: nn.Module, rank: int, step: int = step) -> Tensor:
                return loss_of(module, rank, step)

            expected = expected_gradients(model.module, forward)
            forward(model, shoal.rank()).backward()
            assert_gradients(model, expected)
            if step > 0:
                addresses.add(tuple(parameter.grad.data_ptr() for parameter in model.parameters()))
        assert len(addresses) == 1, "gradients have left the arena"


@scenario
def without_clearing_means_add_up() -> None:
    model = DistributedDataParallel(mlp())
    expected = expected_gradients(model.module)
    for _ in range(2):
        loss_of(model, shoal.rank()).backward()
    assert_gradients(model, {name: 2 * gradient for name, gradient in expected.items() if gradient is not None})


@scenario
def two_backward_passes_through_one_forward_pass_add_up() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    expected = expected_gradients(model.module)
    loss = loss_of(model, shoal.rank())
    loss.backward(retain_graph=True)
    loss.backward()
    assert_gradients(model, {name: 2 * gradient for name, gradient in expected.items() if gradient is not None})


@scenario
def two_forward_passes_before_one_backward_pass() -> None:
    def forward(module: nn.Module, rank: int) -> Tensor:
        return loss_of(module, rank, 1) * loss_of(module, rank, 2)

    for find_unused in (False, True):
        step_is_right(DistributedDataParallel(mlp(), find_unused_parameters=find_unused), forward)


@scenario
def a_parameter_may_be_used_twice() -> None:
    layer = nn.Linear(6, 6)
    step_is_right(DistributedDataParallel(nn.Sequential(layer, nn.Tanh(), layer)))


@scenario
def no_sync_only_adds_and_the_next_pass_averages_the_sum() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    for _ in range(2):
        model.zero_grad()

        def forward(module: nn.Module, rank: int) -> Tensor:
            return loss_of(module, rank, 1) + loss_of(module, rank, 2) + loss_of(module, rank, 3)

        expected = expected_gradients(model.module, forward)
        with model.no_sync():
            for step in (1, 2):
                loss_of(model, shoal.rank(), step).backward()
        alone = copy.deepcopy(model.module)
        (loss_of(alone, shoal.rank(), 1) + loss_of(alone, shoal.rank(), 2)).backward()
        for parameter, reference in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, reference.grad)
        loss_of(model, shoal.rank(), 3).backward()
        assert_gradients(model, expected)


@scenario
def a_gradient_that_came_during_no_sync_is_averaged_though_unused_afterwards() -> None:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    mine = "abc" if shoal.rank() == 1 else "ac"
    with model.no_sync():
        branch_loss(lambda _: mine)(model, shoal.rank()).backward()
    branch_loss(lambda _: "ac")(model, shoal.rank()).backward()
    alone = copy.deepcopy(model.module)
    branch_loss(lambda _: "abc")(alone, 1).backward()
    expected = alone.branches["b"].weight.grad / shoal.size()
    torch.testing.assert_close(model.module.branches["b"].weight.grad, expected, rtol=1e-4, atol=1e-6)


@scenario
def clipping_sees_the_averaged_gradients() -> None:
    model = DistributedDataParallel(mlp())
    expected = expected_gradients(model.module)
    loss_of(model, shoal.rank()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    wanted = torch.stack([gradient.norm() for gradient in expected.values() if gradient is not None]).norm()
    torch.testing.assert_close(norm, wanted, rtol=1e-4, atol=0.0)
    clipped = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    torch.testing.assert_close(clipped, torch.tensor(0.01), rtol=1e-3, atol=0.0)


@scenario
def unused_parameters_count_as_zero_and_stay_untouched_where_nobody_used_them() -> None:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True, fusion_mb=TINY_MB)
    loss = branch_loss(lambda rank: "ab" if rank == 0 else "a")
    for _ in range(3):
        step_is_right(model, loss)
        assert model.module.branches["c"].weight.grad is None
    kept = torch.full((6, 6), 7.25)
    model.module.branches["c"].weight.grad = kept
    model.module.branches["a"].weight.grad = None
    loss(model, shoal.rank()).backward()
    assert model.module.branches["c"].weight.grad is kept
    assert torch.equal(kept, torch.full((6, 6), 7.25))
    # Once it lies in the arena it must survive being averaged with the others.
    branch_loss(lambda _: "abc")(model, shoal.rank()).backward()
    before = model.module.branches["c"].weight.grad.clone()
    loss(model, shoal.rank()).backward()
    assert torch.equal(model.module.branches["c"].weight.grad, before)


@scenario
def without_unused_parameters_looking_for_them_changes_nothing() -> None:
    model = DistributedDataParallel(mlp(), find_unused_parameters=True, fusion_mb=TINY_MB)
    for _ in range(3):
        step_is_right(model)


@scenario
def gradients_may_arrive_in_another_order_in_each_step_and_on_each_rank() -> None:
    model = DistributedDataParallel(Branches(), fusion_mb=TINY_MB)
    orders = ["abc", "bca", "cab", "cba", "acb"]
    for step in range(5):
        step_is_right(model, branch_loss(lambda rank, step=step: orders[(step + rank) % 5]))


@scenario
def the_order_of_rank_0s_first_pass_becomes_that_of_the_arena() -> None:
    model = DistributedDataParallel(Branches())
    order = {0: "bca", 1: "abc", 2: "cab"}[shoal.rank()]
    branch_loss(lambda _: order)(model, shoal.rank()).backward()
    address = {name: model.module.branches[name].weight.grad.data_ptr() for name in "abc"}
    assert sorted("abc", key=address.__getitem__) == ["a", "c", "b"]


@scenario
def a_missing_gradient_is_an_error_that_names_the_parameter_on_every_rank() -> None:
    model = DistributedDataParallel(Branches(), fusion_mb=TINY_MB)
    everything = branch_loss(lambda _: "abc")
    for _ in range(2):
        incomplete = branch_loss(lambda rank: "ac" if rank == 1 else "abc")
        with pytest.raises(shoal.ShoalError, match=r"rank 1 .*branches\.b\.weight.*find_unused_parameters=True"):
            incomplete(model, shoal.rank()).backward()
        step_is_right(model, everything)


@scenario
def a_pass_that_ends_with_an_exception_is_heard_by_the_others() -> None:
    for failing in (0, 2, 4):
        model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
        step_is_right(model)

        def fail(*_: object) -> None:
            raise ValueError("no such thing")

        hook = model.module[failing].register_full_backward_pre_hook(fail) if shoal.rank() == 2 else None
        loss = loss_of(model, shoal.rank())
        if hook is not None:
            with pytest.raises(ValueError, match="no such thing"):
                loss.backward()
            hook.remove()
        else:
            with pytest.raises(shoal.ShoalError, match=r"rank 2 .*ended with an error"):
                loss.backward()
        step_is_right(model)


@scenario
def a_parameter_may_be_frozen_and_thawed_half_way() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    step_is_right(model)
    for frozen in (True, False):
        for parameter in model.module[2].parameters():
            parameter.requires_grad_(not frozen)
        for _ in range(2):
            step_is_right(model)


@scenario
def a_parameter_frozen_on_one_rank_only_is_an_error_that_names_it_everywhere() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    step_is_right(model)
    if shoal.rank() == 1:
        model.module[2].weight.requires_grad_(False)
    with pytest.raises(shoal.Mismatch, match=r"rank 0 .*rank 1 "):
        loss_of(model, shoal.rank()).backward()
    model.module[2].weight.requires_grad_(False)
    for _ in range(2):
        step_is_right(model)


@scenario
def a_dtype_may_change_half_way() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    step_is_right(model)
    model.module.double()

    def forward(module: nn.Module, rank: int) -> Tensor:
        loss: Tensor = module(inputs(rank).double()).square().sum()
        return loss

    for _ in range(2):
        step_is_right(model, forward)
    assert all(parameter.grad.dtype == torch.float64 for parameter in model.parameters())


@scenario
def dtypes_may_be_mixed() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
            self.weights = nn.ParameterList([torch.randn(7, 3, dtype=dtype) for dtype in dtypes])

        def forward(self, scale: float) -> Tensor:
            return torch.stack([(weight * scale * weight.conj()).sum().abs().double() for weight in self.weights]).sum()

    model = DistributedDataParallel(Mixed(), fusion_mb=TINY_MB)
    for _ in range(2):
        model.zero_grad()
        expected = expected_gradients(model.module, lambda module, rank: module(rank + 1.0))
        model(shoal.rank() + 1.0).backward()
        for name, parameter in model.module.named_parameters():
            tolerance = 2e-2 if parameter.dtype in (torch.bfloat16, torch.float16) else 1e-5
            torch.testing.assert_close(parameter.grad, expected[name], rtol=tolerance, atol=tolerance)


@scenario
def memory_layouts_are_kept() -> None:
    class Layouts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transposed = nn.Parameter(torch.randn(4, 6).t())
            self.gaps = nn.Parameter(torch.randn(6, 8)[:, ::2])
            self.convolution = nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last)
            self.number = nn.Parameter(torch.tensor(2.0))
            self.nothing = nn.Parameter(torch.empty(0, 3))

        def forward(self, x: Tensor) -> Tensor:
            y = (x @ (self.transposed + self.gaps)).view(5, 4, 1, 1).expand(5, 4, 3, 3)
            return self.convolution(y * self.number)

    model = DistributedDataParallel(Layouts(), fusion_mb=TINY_MB)
    for _ in range(2):
        step_is_right(model)
    convolution = model.module.convolution.weight
    assert convolution.grad.stride() == convolution.stride()
    assert model.module.transposed.grad.stride() == model.module.transposed.stride()


@scenario
def a_sparse_gradient_is_an_error_that_names_the_parameter_on_every_rank() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(10, 6, sparse=True), nn.Linear(6, 2)))
    with pytest.raises(shoal.ShoalError, match=r"0\.weight.*sparse=False"):
        model(torch.arange(5)).sum().backward()


@scenario
def a_gradient_with_a_graph_of_its_own_is_an_error_that_names_it() -> None:
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    with pytest.raises(shoal.ShoalError, match=r"gradient of weight has a graph.*autograd\.grad"):
        (model(torch.ones(2, 3)) ** 2).sum().backward(create_graph=True)


@scenario
def statistics_that_would_not_be_those_of_all_ranks_are_refused() -> None:
    with pytest.raises(shoal.ConfigurationError, match=r"1 is a SyncBatchNorm.*init_process_group"):
        DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3)))


@scenario
def checkpointed_parts_are_averaged() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, use_reentrant: bool) -> None:
            super().__init__()
            self.first, self.second = mlp(), nn.Linear(2, 2)
            self.use_reentrant = use_reentrant

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.first, x.requires_grad_(), use_reentrant=self.use_reentrant)
            return checkpoint(self.second, x, use_reentrant=self.use_reentrant)

    for use_reentrant in (True, False):
        model = DistributedDataParallel(Checkpointed(use_reentrant), fusion_mb=TINY_MB)
        for _ in range(2):
            step_is_right(model)


@scenario
def gradients_that_are_only_asked_for_are_not_averaged() -> None:
    for find_unused in (False, True):
        model = DistributedDataParallel(mlp(), find_unused_parameters=find_unused)
        if shoal.rank() == 0:
            x = inputs(0).requires_grad_()
            torch.autograd.grad(model(x).sum(), x)
            torch.autograd.grad(model(x).sum(), list(model.parameters()))
        step_is_right(model)


@scenario
def buffers_become_rank_0s_before_each_forward_pass_in_training() -> None:
    for broadcast_buffers in (True, False):
        module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=1.0))
        model = DistributedDataParallel(module, broadcast_buffers=broadcast_buffers)
        seen: list[Tensor] = []
        module.register_forward_pre_hook(lambda *_, m=module, s=seen: s.append(m[1].running_mean.clone()))
        for step in range(2):
            model(inputs(shoal.rank(), step)).sum().backward()
        means = shoal.allgather(seen[1]).view(3, 4)
        assert torch.equal(means[0], means[2]) == broadcast_buffers
        counted = shoal.allgather(module[1].num_batches_tracked.view(1))
        assert counted.tolist() == [2, 2, 2]
        model.eval()
        if shoal.rank() == 0:
            model(inputs(0))


@scenario
def modules_that_differ_are_refused_on_every_rank() -> None:
    width = 7 if shoal.rank() == 2 else 6
    with pytest.raises(shoal.Mismatch, match=r"rank 0 .*weight: float32 \[2, 6\].*rank 2 .*weight: float32 \[2, 7\]"):
        DistributedDataParallel(nn.Linear(width, 2))


@scenario
def what_cannot_be_wrapped_is_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="nothing to average"):
        DistributedDataParallel(nn.ReLU())
    with pytest.raises(shoal.ConfigurationError, match="weight is on meta"):
        DistributedDataParallel(nn.Linear(2, 2, device="meta"))
    with pytest.raises(shoal.ConfigurationError, match="device_ids"):
        DistributedDataParallel(nn.Linear(2, 2), device_ids=[0])
    with pytest.raises(TypeError, match="no shape yet"):
        DistributedDataParallel(nn.LazyLinear(2))
    with torch.inference_mode():
        made_there = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="weight was made in inference mode"):
        DistributedDataParallel(made_there)
    made_of_two = nn.Linear(2, 2)
    made_of_two.weight = nn.Parameter(TwoTensor(torch.ones(2, 2), torch.ones(2, 2)))
    with pytest.raises(TypeError, match="weight is a TwoTensor"):
        DistributedDataParallel(made_of_two)
    sparse = nn.Linear(2, 2)
    sparse.register_buffer("mask", torch.eye(2).to_sparse())
    for syncs in ({}, {"forward_sync_buffers": False}, {"forward_sync_buffers": True, "init_sync": False}):
        with pytest.raises(TypeError, match=r"mask is sparse .* broadcast_buffers=False"):
            DistributedDataParallel(sparse, **syncs)
    DistributedDataParallel(sparse, forward_sync_buffers=False, init_sync=False)
    with pytest.raises(TypeError, match=r"shoal\.Group"):
        DistributedDataParallel(nn.Linear(2, 2), process_group=object())


@scenario
def a_group_averages_among_its_members() -> None:
    group = shoal.Group([2, 0], name="pair")
    if shoal.rank() == 1:
        with pytest.raises(ValueError, match="not a member"):
            DistributedDataParallel(nn.Linear(6, 2), process_group=group)
        return
    model = DistributedDataParallel(nn.Linear(6, 2), process_group=group)
    loss_of(model, shoal.rank()).backward()
    gradients = []
    for rank in group.ranks:
        reference = copy.deepcopy(model.module)
        loss_of(reference, rank).backward()
        gradients.append(reference.weight.grad)
    torch.testing.assert_close(model.module.weight.grad, (gradients[0] + gradients[1]) / 2)


@scenario
def a_module_whose_wrapper_is_gone_is_free_again() -> None:
    module = mlp()
    model = DistributedDataParallel(module)
    step_is_right(model)
    del model
    gc.collect()
    alone = copy.deepcopy(module)
    module.zero_grad()
    loss_of(module, shoal.rank()).backward()
    loss_of(alone, shoal.rank()).backward()
    assert torch.equal(module[0].weight.grad, alone[0].weight.grad)
    step_is_right(DistributedDataParallel(module))
