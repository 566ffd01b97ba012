"""Scenarios of shoal.torch for 3 ranks: scripts written for PyTorch's own DistributedDataParallel, of which the import changes."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint
from torch_scenarios import TINY_MB, expected_gradients, inputs, loss_of, mlp, step_is_right

import shoal
import shoal.torch
from shoal.torch import DistributedDataParallel, module_tensors, versions

SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def same_state(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True))


class Inner(nn.Module):
    """A module with a part that is called module itself, as the wrapper's is."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


@scenario
def a_state_dict_may_come_from_the_wrapper_or_from_the_plain_module() -> None:
    for make in (normalised, Inner):
        torch.manual_seed(5)
        trained = make()
        for named_as in (trained, DistributedDataParallel(copy.deepcopy(trained), broadcast_buffers=False)):
            torch.manual_seed(6)
            model = DistributedDataParallel(make())
            assert not same_state(model.module, trained)
            assert str(model.load_state_dict(named_as.state_dict())) == "<All keys matched successfully>"
            assert same_state(model.module, trained)
            step_is_right(model)
        plain = make()
        plain.load_state_dict(model.module.state_dict())
        assert same_state(plain, model.module)
        prefixed = model.state_dict()
        nn.modules.utils.consume_prefix_in_state_dict_if_present(prefixed, "module.")
        make().load_state_dict(prefixed)
        nn.ModuleDict({"module": make()}).load_state_dict(model.state_dict())


@scenario
def a_state_dict_that_does_not_fit_is_refused_as_pytorch_does() -> None:
    model = DistributedDataParallel(mlp())
    for prefix in ("", "module."):
        state = {f"{prefix}{name}": value for name, value in mlp().state_dict().items()}
        del state[f"{prefix}2.bias"]
        with pytest.raises(RuntimeError, match=r"Missing key.*module\.2\.bias"):
            model.load_state_dict(state)
        assert model.load_state_dict(state, strict=False).missing_keys == ["module.2.bias"]
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})


@scenario
def versions_of_a_plain_modules_parts_are_read() -> None:
    """Batch normalisation of version 1 had no counter; a state of version 2 without it is damaged."""
    model = DistributedDataParallel(normalised())
    state = normalised().state_dict()
    del state["1.num_batches_tracked"]
    with pytest.raises(RuntimeError, match="num_batches_tracked"):
        model.load_state_dict(state)
    state._metadata["1"]["version"] = 1
    model.load_state_dict(state)


@scenario
def parameters_that_loading_has_replaced_are_averaged() -> None:
    model = DistributedDataParallel(mlp())
    step_is_right(model)
    state = {name: value.clone() for name, value in model.module.state_dict().items()}
    model.load_state_dict(state, assign=True)
    for _ in range(2):
        step_is_right(model)


NOTHING: dict[str, Any] = {
    "device_ids": None,
    "output_device": None,
    "dim": 0,
    "broadcast_buffers": None,
    "init_sync": True,
    "process_group": None,
    "bucket_cap_mb": None,
    "find_unused_parameters": False,
    "check_reduction": False,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "delay_all_reduce_named_params": None,
    "param_to_hook_all_reduce": None,
    "mixed_precision": None,
    "device_mesh": None,
    "skip_all_reduce_unused_params": False,
    "bucket_cap_mb_list": None,
    "batched_grad_copy": False,
    "forward_sync_buffers": None,
    "lazy_bucket_allocation": False,
}


@scenario
def every_argument_of_pytorchs_wrapper_is_one_of_ours() -> None:
    theirs = list(inspect.signature(nn.parallel.DistributedDataParallel).parameters)
    ours = list(inspect.signature(DistributedDataParallel).parameters)
    # Versions of PyTorch have more and more of them; those that there are have their places, but for older ones.
    assert set(theirs) <= set(ours)
    if "init_sync" in theirs:
        assert ours[: len(theirs)] == theirs
    with pytest.raises(TypeError, match="process_group and what follows it by name"):
        DistributedDataParallel(mlp(), None, None, 0, True, object())  # type: ignore[arg-type]
    step_is_right(DistributedDataParallel(mlp(), **NOTHING))
    step_is_right(DistributedDataParallel(mlp(), *NOTHING.values()))


@scenario
def arguments_have_the_meaning_that_pytorch_gives_them() -> None:
    for given in ("gradient_as_bucket_view", "batched_grad_copy", "check_reduction", "lazy_bucket_allocation"):
        step_is_right(DistributedDataParallel(mlp(), **{given: True}))
    small = DistributedDataParallel(mlp(), bucket_cap_mb=TINY_MB)
    step_is_right(small)
    large = DistributedDataParallel(mlp(), bucket_cap_mb=25)
    step_is_right(large)
    assert small.get_ddp_logging_data().operations > 3 > large.get_ddp_logging_data().operations - 1
    assert DistributedDataParallel(mlp(), forward_sync_buffers=False).broadcast_buffers is False
    assert DistributedDataParallel(mlp(), broadcast_buffers=False).broadcast_buffers is False
    for syncs, same in (({"forward_sync_buffers": False}, True), ({"broadcast_buffers": False}, False), ({}, True)):
        module = mlp()
        module.register_buffer("of_rank", torch.tensor(float(shoal.rank())))
        DistributedDataParallel(module, **syncs)
        assert module.of_rank == (0 if same else shoal.rank())
    for syncs in (True, False):
        with pytest.warns(UserWarning, match="broadcast_buffers=.* counts for nothing"):
            model = DistributedDataParallel(mlp(), broadcast_buffers=not syncs, forward_sync_buffers=syncs)
        assert model.broadcast_buffers is syncs
        model.broadcast_buffers = not syncs
        assert model.forward_sync_buffers is not syncs
    assert DistributedDataParallel(mlp(), skip_all_reduce_unused_params=True).find_unused_parameters
    module = mlp()
    before = copy.deepcopy(module)
    DistributedDataParallel(module, init_sync=False)
    assert same_state(module, before)


@scenario
def arguments_that_have_no_meaning_here_are_refused_with_a_reason() -> None:
    weight = nn.Linear(6, 2)
    for given, text in (
        ({"device_ids": [0]}, "this one is on cpu"),
        ({"output_device": 0}, "this one is on cpu"),
        ({"dim": 1}, "leave it out"),
        ({"delay_all_reduce_named_params": [("weight", weight.weight)]}, "leave it out"),
        ({"param_to_hook_all_reduce": weight.weight}, "leave it out"),
        ({"mixed_precision": object()}, "autocast"),
        ({"bucket_cap_mb_list": [1, 2]}, "bucket_cap_mb"),
        ({"bucket_cap_mb": 1, "fusion_mb": 2}, "two names"),
    ):
        with pytest.raises(shoal.ConfigurationError, match=text):
            DistributedDataParallel(mlp(), **given)
    with pytest.raises(NotImplementedError, match=r"init_process_group\(\"shoal\"\)"):
        DistributedDataParallel(mlp()).register_comm_hook(None, None)


@scenario
def names_that_the_owner_has_taken_out_are_left_alone() -> None:
    module = normalised()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight", "1.running_mean"])
    by_pytorch = normalised()
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(by_pytorch, ["0.weight"])
    assert "0.weight" not in dict(module_tensors.parameters(by_pytorch))
    before = copy.deepcopy(module)
    model = DistributedDataParallel(module)
    assert torch.equal(module[0].weight, before[0].weight)
    model(inputs(shoal.rank())).sum().backward()
    before(inputs(shoal.rank())).sum().backward()
    assert not torch.equal(*shoal.allgather(module[0].weight.grad.view(1, -1))[:2])
    assert not torch.equal(*shoal.allgather(module[1].running_mean.view(1, -1))[:2])
    assert torch.equal(*shoal.allgather(module[3].weight.grad.view(1, -1))[:2])


@scenario
def the_attribute_that_scripts_set_instead_of_no_sync() -> None:
    model = DistributedDataParallel(mlp())

    def in_two_parts(module: nn.Module, rank: int) -> Tensor:
        if module is not model:
            return loss_of(module, rank, 1) + loss_of(module, rank, 2)
        model.require_backward_grad_sync = False
        loss_of(model, rank, 1).backward()
        model.require_backward_grad_sync = True
        return loss_of(model, rank, 2)

    assert model.get_ddp_logging_data().passes == 0
    step_is_right(model, in_two_parts)
    assert model.get_ddp_logging_data().passes == 1


class Nested(nn.Module):
    """A part that nested backward passes reach twice, and another that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.last, self.idle = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        for _ in range(2):
            x = checkpoint(self.twice, x, use_reentrant=True)
        out: Tensor = self.last(x)
        return out


@scenario
def a_static_graph_may_have_nested_backward_passes_and_idle_parts() -> None:
    def loss(module: nn.Module, rank: int) -> Tensor:
        out: Tensor = module(inputs(rank)).square().sum()
        return out

    for fusion_mb in (TINY_MB, None):
        model = DistributedDataParallel(Nested(), static_graph=True, fusion_mb=fusion_mb)
        for _ in range(4):
            step_is_right(model, loss)
            assert model.module.idle.weight.grad is None


@scenario
def a_static_graph_learns_what_is_idle_and_does_not_send_it() -> None:
    model = DistributedDataParallel(Nested(), static_graph=True, fusion_mb=TINY_MB)
    for _ in range(3):
        step_is_right(model, lambda module, rank: module(inputs(rank)).square().sum())
    idle, others = 4 * (32 * 32 + 32), 4 * (6 * 6 + 6 + 6 * 2 + 2)
    # In the first step it is not known yet; in the others a buffer may hold the end of the one and the beginning of the other.
    assert model.get_ddp_logging_data().skipped_bytes >= 2 * (idle - 256)
    assert model.get_ddp_logging_data().bytes >= 3 * others


@scenario
def two_forward_passes_with_buffers_before_one_backward_pass() -> None:
    model = DistributedDataParallel(normalised())
    expected = expected_gradients(
        model.module,
        lambda module, rank: module(inputs(rank, 1)).square().sum() * module(inputs(rank, 2)).square().sum(),
    )
    one = model(inputs(shoal.rank(), 1)).square().sum()
    (one * model(inputs(shoal.rank(), 2)).square().sum()).backward()
    for name, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)


def groups_of_torch_distributed() -> tuple[list[float], list[float]]:
    """The averages of the ranks' numbers over the groups of PyTorch that a module was wrapped for: a pair, and all."""
    torch.set_num_threads(1)
    dist.init_process_group("shoal" if versions.RELEASE >= versions.OLDEST_OF_BACKEND else "gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 2])
    everyone = DistributedDataParallel(nn.Linear(1, 1, bias=False), device_mesh=init_device_mesh("cpu", (3,)))
    everyone(torch.full((1, 1), 3.0 * rank**2)).sum().backward()
    whole = everyone.module.weight.grad.flatten().tolist()
    step_is_right(DistributedDataParallel(mlp(), process_group=dist.group.WORLD))
    if rank == 1:
        with pytest.raises(ValueError, match="not a member"):
            DistributedDataParallel(nn.Linear(1, 1), process_group=pair)
        part: list[float] = []
    else:
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=pair)
        model(torch.full((1, 1), 3.0 * rank**2)).sum().backward()
        part = model.module.weight.grad.flatten().tolist()
    dist.destroy_process_group()
    return whole, part
