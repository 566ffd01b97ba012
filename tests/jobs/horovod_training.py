"""What Horovod's door promises to training: optimizers, functions, batch normalisation. As horovod_operations.py."""

import copy
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from horovod_scenarios import scenario
from torch import nn

import shoal.horovod.torch as hvd
from shoal.horovod.common import handles
from shoal.job import runtime


def model_of_all() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))


def inputs(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, rank: int, step: int = 0) -> torch.Tensor:
    loss: torch.Tensor = model(inputs(rank, step)).square().mean()
    return loss


def trained_alone(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, passes: int = 1) -> None:
    """What training on all ranks comes to."""
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            (sum(loss_of(model, rank, step * passes + each) for rank in range(hvd.size())) / hvd.size()).backward()
        optimizer.step()


def assert_same(one: nn.Module, other: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=tolerance), name


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(optimizer: Any, model: nn.Module, steps: int = 3, passes: int = 1) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            loss_of(model, hvd.rank(), step * passes + each).backward()
        optimizer.step()


@scenario
def training_is_that_of_one_process_with_all_batches() -> None:
    for options, passes, tolerance in (
        ({}, 1, 1e-6),
        ({"backward_passes_per_step": 3}, 3, 1e-6),
        ({"gradient_predivide_factor": 2.0}, 1, 1e-6),
        ({"groups": 2}, 1, 1e-6),
        ({"compression": hvd.Compression.fp16}, 1, 1e-2),
        ({"compression": hvd.Compression.bf16}, 1, 5e-2),
    ):
        alone, together = model_of_all(), model_of_all()
        trained_alone(alone, sgd(alone), 3, passes)
        optimizer = hvd.DistributedOptimizer(sgd(together), together.named_parameters(), **options)
        train(optimizer, together, 3, passes)
        assert_same(together, alone, tolerance)
        assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in together.parameters()), options


@scenario
def parameters_may_be_grouped_by_hand_and_have_no_names() -> None:
    alone, together = model_of_all(), model_of_all()
    trained_alone(alone, torch.optim.Adam(alone.parameters()), 3)
    groups = [[together[0].weight, together[4].weight], [together[2].bias]]
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(together.parameters()), groups=groups)
    assert isinstance(optimizer, torch.optim.Adam)
    train(optimizer, together)
    assert_same(together, alone)


@scenario
def a_sum_is_not_divided() -> None:
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Sum)
    loss_of(model, hvd.rank()).backward()
    optimizer.synchronize()
    reference = model_of_all()
    sum(loss_of(reference, rank) for rank in range(3)).backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-6)


@scenario
def operations_start_while_backward_runs() -> None:
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    seen = []
    model[0].weight.register_hook(lambda _: seen.append(len(optimizer._waits)))
    loss_of(model, hvd.rank()).backward()
    assert seen[0] >= 4, "the gradients of the two later layers are on their way when the first's comes"
    optimizer.step()


@scenario
def gradients_are_clipped_between_synchronize_and_step() -> None:
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    loss_of(model, hvd.rank()).backward()
    optimizer.synchronize()
    before = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert torch.equal(before, hvd.broadcast(before, 0))
    with optimizer.skip_synchronize():
        optimizer.step()
    pairs = zip(model.parameters(), model_of_all().parameters(), strict=True)
    change = max((mine - theirs).abs().max() for mine, theirs in pairs)
    assert 0 < change <= 1e-4
    loss_of(model, hvd.rank()).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\)"):
        optimizer.step()


@scenario
def what_would_average_wrong_gradients_is_refused() -> None:
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    loss_of(model, hvd.rank()).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step=1"):
        loss_of(model, hvd.rank()).backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(AssertionError, match="create_graph"):
        loss_of(model, hvd.rank()).backward(create_graph=True)
    optimizer.synchronize()


@scenario
def a_gradient_that_one_rank_lacks_counts_as_zero() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(4, 1, bias=False) for _ in range(3)])

    torch.manual_seed(1)
    model = TwoHeads()
    for options in ({}, {"groups": 1}):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), **options
        )
        optimizer.zero_grad()
        model.heads[hvd.rank()](torch.ones(1, 4)).sum().backward()
        optimizer.step()
        for head in model.heads:
            assert torch.allclose(head.weight.grad, torch.full((1, 4), 1 / 3))
        del optimizer


@scenario
def frozen_parameters_stay_and_may_thaw() -> None:
    model = model_of_all()
    model[0].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    train(optimizer, model, 1)
    assert torch.equal(model[0].weight, model_of_all()[0].weight)
    model[2].requires_grad_(False)
    train(optimizer, model, 1)
    model[2].requires_grad_(True)
    train(optimizer, model, 1)
    assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in model.parameters())


@scenario
def sparse_gradients_are_averaged() -> None:
    for as_dense in (False, True):
        torch.manual_seed(3)
        embedding = nn.Embedding(8, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(list(embedding.parameters()), lr=0.1), sparse_as_dense=as_dense
        )
        embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
        optimizer.synchronize()
        assert embedding.weight.grad.is_sparse
        expected = torch.zeros(8, 2)
        expected[:3] = 1 / 3
        expected[5] = 1.0
        assert torch.allclose(embedding.weight.grad.to_dense(), expected)
        with optimizer.skip_synchronize():
            optimizer.step()


@scenario
def only_the_ranks_of_a_process_set_average() -> None:
    pair = hvd.add_process_set([0, 1])
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), process_set=pair)
    train(optimizer, model)
    weights = hvd.allgather(model[0].weight.detach().unsqueeze(0))
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2])
    assert hvd.remove_process_set(pair)


@scenario
def an_optimizer_keeps_its_state_its_options_and_its_scheduler() -> None:
    model = model_of_all()
    inner = sgd(model)
    trained_alone(model, inner, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    before = {name: value.clone() for name, value in inner.state[model[0].weight].items()}
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert all(torch.equal(optimizer.state[model[0].weight][name], value) for name, value in before.items())
    with pytest.warns(UserWarning, match="lr_scheduler"):
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    train(optimizer, model)
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    train(optimizer, model)
    late.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    saved = copy.deepcopy(optimizer.state_dict())
    train(optimizer, model, 1)
    optimizer.load_state_dict(saved)
    train(optimizer, model, 1)
    assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in model.parameters())


@scenario
def a_closure_s_gradients_are_averaged_too() -> None:
    alone, together = model_of_all(), model_of_all()
    trained_alone(alone, sgd(alone), 2)
    optimizer = hvd.DistributedOptimizer(sgd(together), together.named_parameters())
    for step in range(2):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(together, hvd.rank(), step)
            loss.backward()
            return loss

        assert optimizer.step(closure) is not None
    assert_same(together, alone)


@scenario
def an_optimizer_that_is_gone_averages_nothing() -> None:
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    loss_of(model, hvd.rank()).backward()
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None, "at once, though gradients are on their way"
    second = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    second.zero_grad()
    train(second, model)
    assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in model.parameters())


@scenario
def what_nobody_waits_for_any_more_is_kept_nowhere() -> None:
    kept = handles._jobs.of(runtime.current()).started
    before = len(kept)
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    loss_of(model, hvd.rank()).backward()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    train(optimizer, model, 1)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.broadcast_parameters([torch.ones(2), torch.ones(2 + hvd.rank()), torch.ones(3)], root_rank=0)
    assert len(kept) == before


@scenario
def a_gradient_that_is_replaced_while_it_is_averaged_gets_the_average() -> None:
    model, reference = model_of_all(), model_of_all()
    (sum(loss_of(reference, rank) for rank in range(hvd.size())) / hvd.size()).backward()
    for options in ({}, {"compression": hvd.Compression.bf16}):
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, hvd.rank()).backward()
            model[0].weight.grad = model[0].weight.grad / 2
            model[2].weight.grad.data = torch.zeros(3, 5)
            model[2].bias.grad = None
            model[4].weight.grad = model[4].weight.grad.detach()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.synchronize()
            assert len(caught) == (0 if step else 1), "it is said once"
            if caught:
                assert f"rank {hvd.rank()}" in str(caught[0].message)
                assert "the gradients of 2.weight, 0.weight were replaced" in str(caught[0].message)
            for (name, mine), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
                assert name == "2.bias" or torch.allclose(mine.grad, theirs.grad, atol=1e-6 if not options else 1e-2), (
                    name
                )
            assert model[2].bias.grad is None


@scenario
def hooks_of_steps_run_once_on_averaged_gradients() -> None:
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    seen: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model[0].weight.grad.clone()))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    for _ in range(2):
        train(optimizer, model, 1)
        gradient, after = seen
        assert after == "after"
        assert torch.equal(gradient, hvd.broadcast(gradient, 0))
        optimizer.load_state_dict(optimizer.state_dict())
        seen.clear()


@scenario
def an_optimizer_of_the_program_s_own_is_called_as_the_program_calls_it() -> None:
    class Plain(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            super().step()

        def zero_grad(self) -> None:  # type: ignore[override]
            super().zero_grad()

        def load_state_dict(self, state_dict: Any, strict: bool = False) -> None:
            assert strict
            super().load_state_dict(state_dict)

    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(Plain(model.parameters(), lr=0.1), model.named_parameters())
    train(optimizer, model, 1)
    optimizer.load_state_dict(optimizer.state_dict(), strict=True)
    loss_of(model, hvd.rank()).backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in model.parameters())


@scenario
def wrong_arguments_of_the_optimizer_are_refused() -> None:
    model = model_of_all()
    twice = [("same", parameter) for parameter in model.parameters()]
    cases: dict[str, dict[str, Any]] = {
        "more than once": {"named_parameters": twice},
        "lacks what the optimizer has": {"named_parameters": list(model.named_parameters())[:2]},
        "pairs of a name": {"named_parameters": model.parameters()},
        "is for op=hvd.Average": {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        "at least 1": {"backward_passes_per_step": 0},
        "in groups more than once": {"groups": [[model[0].weight, model[0].weight]]},
        "no tensor": {"groups": [["weight"]]},
        "number above 0": {"groups": 0},
    }
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(sgd(model), **options)


@scenario
def all_ranks_begin_with_the_root_s_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(hvd.rank())
    model[1].num_batches_tracked.fill_(hvd.rank() + 5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    assert all((parameter == 1).all() for parameter in model.parameters())
    assert model[1].num_batches_tracked == 6
    hvd.broadcast_parameters([torch.ones(1), torch.ones(2)], root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    with pytest.raises(ValueError, match="holds no parameters"):
        hvd.broadcast_parameters(torch.ones(1), root_rank=0)


@scenario
def all_ranks_go_on_from_the_root_s_optimizer() -> None:
    makers: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1 / (hvd.rank() + 1), momentum=0.9),
        lambda parameters: torch.optim.AdamW(
            parameters, lr=0.1 / (hvd.rank() + 1), betas=(0.8 - 0.1 * hvd.rank(), 0.9)
        ),
    ]
    for make in makers:
        model = model_of_all()
        optimizer = make(model.parameters())
        if hvd.rank() == 2:
            loss_of(model, 0).backward()
            optimizer.step()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=2)
        hvd.broadcast_optimizer_state(optimizer, root_rank=2)
        assert optimizer.param_groups[0]["lr"] == 0.1 / 3
        states = hvd.allgather_object([dict(optimizer.state[parameter]) for parameter in model.parameters()])
        for each in states:
            for mine, theirs in zip(each, states[2], strict=True):
                assert all(torch.equal(torch.as_tensor(mine[name]), torch.as_tensor(theirs[name])) for name in theirs)
                assert mine.keys() == theirs.keys()
        train(optimizer, model)
        assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in model.parameters())
    fresh = model_of_all()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=1.0, weight_decay=0.5)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert_same(fresh, model_of_all(), 0.0)
    assert all(not parameter.grad.any() for parameter in fresh.parameters())
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(fresh.parameters()), root_rank=0)


@scenario
def schedulers_and_the_wrapped_optimizer_follow_the_root() -> None:
    model = model_of_all()
    inner = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    train(optimizer, model, 1)
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    if hvd.rank() == 1:
        momentum.fill_(7.0)
        optimizer.param_groups[0]["lr"] = 0.8
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.state[model[0].weight]["momentum_buffer"] is momentum
    assert (momentum == 7.0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == inner.param_groups[0]["lr"] == 0.4
    train(optimizer, model)
    assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in model.parameters())


@scenario
def state_keeps_the_dtypes_that_it_has_on_the_root() -> None:
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    rate = optimizer.param_groups[0]["rate"] = torch.tensor(float(hvd.rank()))
    given = {"moment": torch.full((3,), 1 / 3), "codes": torch.arange(3, dtype=torch.uint8), "step": 4}
    given["nested"] = [torch.ones(2, dtype=torch.float64), {"of one": (torch.tensor(5),)}]
    if hvd.rank() == 2:
        optimizer.state[parameter] = given
        optimizer.state["of all"] = {"count": 3}
    hvd.broadcast_optimizer_state(optimizer, root_rank=2)
    assert repr(optimizer.state[parameter]) == repr(given)
    assert optimizer.state["of all"] == {"count": 3}
    assert optimizer.param_groups[0]["rate"] is rate
    assert rate.item() == 2.0
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [each]} for each in parameters] if hvd.rank() == 1 else parameters
    other = torch.optim.SGD(groups, lr=0.1)
    other.state[parameters[0]]["moment"] = torch.ones(2)
    with pytest.raises(
        ValueError if hvd.rank() == 1 else hvd.HorovodInternalError, match=r"groups of \[1, 1\] parameters"
    ):
        hvd.broadcast_optimizer_state(other, root_rank=0)


@scenario
def what_cannot_be_pickled_on_one_rank_is_an_error_on_all() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise ValueError("cannot be packed")

    mine = Stubborn() if hvd.rank() == 1 else 3
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["name"] = mine
    calls: list[Callable[[], Any]] = [
        lambda: hvd.broadcast_object(mine, root_rank=1),
        lambda: hvd.broadcast_object(mine, root_rank=1, name="stubborn"),
        lambda: hvd.allgather_object(mine),
        lambda: hvd.broadcast_optimizer_state(optimizer, root_rank=1),
    ]
    for call in calls:
        with pytest.raises(ValueError if hvd.rank() == 1 else hvd.HorovodInternalError, match="cannot be packed"):
            call()
    assert hvd.allgather_object(hvd.rank()) == [0, 1, 2]


@scenario
def objects_travel() -> None:
    given = {"rank": hvd.rank(), "list": list(range(hvd.rank() * 1000))}
    assert hvd.broadcast_object(given if hvd.rank() == 1 else None, root_rank=1) == {
        "rank": 1,
        "list": list(range(1000)),
    }
    gathered = hvd.allgather_object(given)
    assert [len(each["list"]) for each in gathered] == [0, 1000, 2000]


@scenario
def batch_normalisation_has_the_statistics_of_all_ranks() -> None:
    for shape, rows in (((4,), 6), ((4, 3, 2), 6)):
        batch = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(5)) * 3 + 10
        # The ranks have 1, 2 and 3 rows.
        begin, end = ((0, 1), (1, 3), (3, 6))[hvd.rank()]
        factor = torch.arange(1.0, batch.numel() + 1).reshape(batch.shape)
        plain = nn.BatchNorm1d(4) if len(shape) == 1 else nn.BatchNorm2d(4)
        synced = hvd.SyncBatchNorm(4)
        whole, part = batch.clone().requires_grad_(), batch[begin:end].clone().requires_grad_()
        expected, output = plain(whole), synced(part)
        assert torch.allclose(output, expected[begin:end], atol=1e-5)
        assert torch.allclose(synced.running_mean, plain.running_mean, atol=1e-5)
        assert torch.allclose(synced.running_var, plain.running_var, atol=1e-4)
        assert synced.num_batches_tracked == 1
        (expected * factor).sum().backward()
        (output * factor[begin:end]).sum().backward()
        assert torch.allclose(part.grad, whole.grad[begin:end], atol=1e-3)
        assert torch.allclose(hvd.allreduce(synced.weight.grad, op=hvd.Sum), plain.weight.grad, rtol=1e-4)
        assert torch.allclose(hvd.allreduce(synced.bias.grad, op=hvd.Sum), plain.bias.grad, rtol=1e-4)
        synced.eval(), plain.eval()
        assert torch.allclose(synced(part), plain(part), atol=1e-5)
    with pytest.raises(ValueError, match="takes inputs of shape"):
        synced(torch.ones(3))


@scenario
def batch_normalisation_of_16_bits_is_computed_in_32() -> None:
    for dtype, of_weight in (
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
    ):
        batch = (torch.randn(12, 4, 8, 8, generator=torch.Generator().manual_seed(5)) * 3 + 10).to(dtype)
        # Their sum is beyond float16's range.
        gradient = (torch.randn(batch.shape, generator=torch.Generator().manual_seed(6)) + 100).to(dtype)
        own = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
        plain, synced = nn.BatchNorm2d(4).double(), hvd.SyncBatchNorm(4).to(of_weight)
        whole, part = batch.double().requires_grad_(), batch[own].clone().requires_grad_()
        expected, output = plain(whole), synced(part)
        assert output.dtype == dtype
        assert torch.allclose(output.double(), expected[own], atol=2e-2)
        expected.backward(gradient.double())
        output.backward(gradient[own])
        assert part.grad.dtype == dtype
        assert torch.allclose(part.grad.double(), whole.grad[own], atol=2e-2)
        assert synced.bias.grad.dtype == of_weight
        summed = hvd.allreduce(synced.bias.grad.double(), op=hvd.Sum)
        assert torch.allclose(summed, plain.bias.grad, rtol=1e-2)


@scenario
def second_derivatives_of_batch_normalisation_are_refused() -> None:
    part = inputs(hvd.rank()).requires_grad_()
    (first,) = torch.autograd.grad(hvd.SyncBatchNorm(4)(part).sum(), part, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        first.square().sum().backward()


@scenario
def ranks_know_where_they_are() -> None:
    everyone = hvd.allgather_object((hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()))
    of_nodes = {1: [(0, 3, 0, 1), (1, 3, 0, 1), (2, 3, 0, 1)], 3: [(0, 1, 0, 3), (0, 1, 1, 3), (0, 1, 2, 3)]}
    of_nodes[2] = [(0, 2, 0, 2), (1, 2, 0, 1), (0, 1, 1, 2)]
    assert everyone == of_nodes[everyone[0][3]]
    assert hvd.is_homogeneous() == (everyone[0][3] != 2)
    assert hvd.is_initialized()
    hvd.init()
