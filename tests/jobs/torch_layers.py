"""Scenarios of shoal.torch for 3 ranks: layers that are dropped, added and taken away, and the order of their gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_scenarios import Branches, branch_loss, inputs, loss_of, mlp, step_is_right

import shoal
from shoal.torch import DistributedDataParallel
from shoal.torch.logging_data import DDPLoggingData

SCENARIOS: dict[str, Callable[[], None]] = {}

# One branch's weight (144 bytes) and bias (24): a buffer holds bytes of two branches at most.
TINY_MB = 128 / 2**20


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


class Residual(nn.Module):
    """Layers of 64 x 64 that ``forward`` leaves out if their number is in ``dropped``."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(count)])

    def forward(self, x: Tensor, dropped: tuple[int, ...] = ()) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number not in dropped:
                x = x + torch.tanh(layer(x))
        return x


LAYER_BYTES = 64 * 64 * 4
LAYER_MB = LAYER_BYTES / 2**20


def dropping(dropped_on: Callable[[int], tuple[int, ...]]) -> Callable[[nn.Module, int], Tensor]:
    return lambda model, rank: model(inputs(rank, width=64), dropped_on(rank)).square().sum()


def costs(model: DistributedDataParallel, part: Callable[[], None]) -> DDPLoggingData:
    before = model.get_ddp_logging_data()
    part()
    return model.get_ddp_logging_data() - before


@scenario
def bytes_that_every_rank_drops_are_not_sent() -> None:
    model = DistributedDataParallel(Residual(), find_unused_parameters=True, fusion_mb=LAYER_MB)
    step_is_right(model, dropping(lambda _: ()))
    assert model.get_ddp_logging_data().bytes == 4 * LAYER_BYTES
    for dropped in ((1,), (0, 3), (2,), (), (0, 1, 2)):
        cost = costs(model, lambda dropped=dropped: step_is_right(model, dropping(lambda _: dropped)))
        assert (cost.bytes, cost.skipped_bytes) == ((4 - len(dropped)) * LAYER_BYTES, len(dropped) * LAYER_BYTES)
        for number in dropped:
            assert model.module.layers[number].weight.grad is None


@scenario
def bytes_that_some_rank_does_not_drop_are_sent_by_all() -> None:
    model = DistributedDataParallel(Residual(), find_unused_parameters=True, fusion_mb=LAYER_MB)
    for _ in range(3):
        cost = costs(model, lambda: step_is_right(model, dropping(lambda rank: (rank, 3))))
        assert cost.skipped_bytes == LAYER_BYTES


@scenario
def what_was_accumulated_of_a_layer_is_sent_though_all_ranks_drop_it_in_the_last_pass() -> None:
    model = DistributedDataParallel(Residual(), find_unused_parameters=True, fusion_mb=LAYER_MB)
    step_is_right(model, dropping(lambda _: ()))

    def both(module: nn.Module, rank: int) -> Tensor:
        return dropping(lambda _: ())(module, rank) + dropping(lambda _: (1,))(module, rank)

    def in_two_passes(module: nn.Module, rank: int) -> Tensor:
        if module is not model:
            return both(module, rank)
        with model.no_sync():
            dropping(lambda _: ())(model, rank).backward()
        return dropping(lambda _: (1,))(model, rank)

    assert costs(model, lambda: step_is_right(model, in_two_passes)).skipped_bytes == 0


@scenario
def a_pass_that_fails_on_a_rank_leaves_dropped_layers_in_step() -> None:
    """Also where the failing rank would not have used a layer that the others wait for."""
    model = DistributedDataParallel(Residual(), find_unused_parameters=True, fusion_mb=LAYER_MB)
    step_is_right(model, dropping(lambda _: ()))

    def fail(*_: object) -> None:
        raise ValueError("no such thing")

    cases: list[tuple[Callable[[int], tuple[int, ...]], int]] = [
        (lambda _: (1,), 1),
        (lambda _: (0, 3), 2),
        (lambda rank: (1, 3) if rank == 1 else (3,), 1),
        (lambda rank: (0, 1, 3) if rank == 1 else (), 0),
    ]
    for dropped_on, skipped in cases:
        hook = model.module.layers[2].register_full_backward_pre_hook(fail) if shoal.rank() == 1 else None
        with pytest.raises((ValueError, shoal.ShoalError), match=r"no such thing|rank 1 .*ended with an error"):
            dropping(dropped_on)(model, shoal.rank()).backward()
        if hook is not None:
            hook.remove()
        for _ in range(2):
            cost = costs(model, lambda dropped_on=dropped_on: step_is_right(model, dropping(dropped_on)))
            assert cost.skipped_bytes == skipped * LAYER_BYTES


class Plain(nn.Module):
    """Parameters of LAYER_BYTES each, in these dtypes, of which ``forward`` uses those that are not ``dropped``."""

    def __init__(self, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(LAYER_BYTES // dtype.itemsize, dtype=dtype) for dtype in dtypes])

    def forward(self, scale: float, dropped: tuple[int, ...]) -> Tensor:
        used = [weight for number, weight in enumerate(self.weights) if number not in dropped]
        return torch.stack([(weight.double() * scale).square().sum() for weight in used]).sum()


@scenario
def layouts_that_differ_are_told_where_layers_are_dropped_too() -> None:
    """The same number of buffers with other names, of which each rank would leave out another one."""
    dtypes = torch.float32, torch.float32, torch.float64
    model = DistributedDataParallel(Plain(dtypes), find_unused_parameters=True, fusion_mb=LAYER_MB)

    def loss(module: nn.Module, rank: int) -> Tensor:
        out: Tensor = module(rank + 1.0, (0,))
        return out

    step_is_right(model, loss)
    odd = torch.float64 if shoal.rank() == 1 else torch.float32
    model.module.weights[1] = nn.Parameter(torch.ones(LAYER_BYTES // odd.itemsize, dtype=odd))
    with pytest.raises(shoal.Mismatch, match=r"rank 0 .*rank 1 "):
        loss(model, shoal.rank()).backward()
    model.module.weights[1] = nn.Parameter(torch.ones(LAYER_BYTES // 4))
    for _ in range(2):
        cost = costs(model, lambda: step_is_right(model, loss))
        assert cost.skipped_bytes == LAYER_BYTES


def branches_lie_as(model: DistributedDataParallel) -> str:
    """The branches in the order in which their gradients lie."""
    address = {name: model.module.branches[name].weight.grad.data_ptr() for name in "abc"}
    return "".join(sorted("abc", key=address.__getitem__))


@scenario
def an_order_that_has_changed_for_good_becomes_that_of_the_arena_on_all_ranks() -> None:
    model = DistributedDataParallel(Branches(), fusion_mb=TINY_MB)
    arena = model._reducer.arenas.buffers[0].memory.data_ptr()
    for _ in range(10):
        step_is_right(model, branch_loss(lambda _: "abc"))
    assert branches_lie_as(model) == "cba"
    for _ in range(40):
        branch_loss(lambda rank: "cab" if rank == 0 else "bca")(model, shoal.rank()).backward()
    assert branches_lie_as(model) == "cba", "renewed too early"
    for _ in range(60):
        branch_loss(lambda rank: "cab" if rank == 0 else "bca")(model, shoal.rank()).backward()
    assert branches_lie_as(model) == "bac"
    assert model.get_ddp_logging_data().order_renewals == 1
    for _ in range(3):
        step_is_right(model, branch_loss(lambda _: "cab"))
    assert model._reducer.arenas.buffers[0].memory.data_ptr() == arena, "there was a second arena"


@scenario
def logging_data_tells_bytes_operations_and_times() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=256 / 2**20)
    step_is_right(model)
    gradients = [parameter.nbytes for parameter in model.parameters()]
    size = model._reducer.arenas.nbytes
    assert sum(gradients) <= size < sum(gradients) + 64 * len(gradients), "each begins where kernels want it"
    with model.no_sync():
        loss_of(model, shoal.rank()).backward()
    cost = costs(model, lambda: [step_is_right(model) for _ in range(5)] and None)
    buffers = -(-size // 256)
    assert (cost.passes, cost.bytes, cost.skipped_bytes) == (5, 5 * size, 0)
    # Of each buffer one, and one that asks whether the ranks agree.
    assert cost.operations == 5 * (buffers + 1)
    assert 0 < cost.backward_seconds < 10
    assert 0 < cost.waited_seconds < 10
    assert 0 <= cost.overlap_seconds <= cost.communication_seconds
    assert cost.communication_seconds <= cost.backward_seconds + cost.waited_seconds


@scenario
def overlap_and_waiting_are_told_apart() -> None:
    """A gradient that is long in coming, after others: what was submitted before it overlaps; then nothing is waited for."""
    import time

    model = DistributedDataParallel(mlp(), fusion_mb=256 / 2**20)
    step_is_right(model)
    model.module[0].register_full_backward_pre_hook(lambda *_: time.sleep(0.3))
    cost = costs(model, lambda: loss_of(model, shoal.rank()).backward())
    assert cost.backward_seconds > 0.3
    assert cost.communication_seconds > 0.3
    assert cost.overlap_seconds > 0.8 * cost.communication_seconds - 0.1


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


@scenario
def layers_may_be_added_and_taken_away() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    step_is_right(model)
    model.module.append(seeded(lambda: nn.Linear(2, 3), 1))
    model.module.insert(0, seeded(lambda: nn.Linear(6, 6), 2))
    for _ in range(2):
        step_is_right(model)
    del model.module[4]
    model.module[3].register_parameter("bias", None)
    for _ in range(2):
        step_is_right(model)
    model.module[1].weight = nn.Parameter(torch.full((9, 6), 0.1, dtype=torch.float32))
    for _ in range(2):
        step_is_right(model)


@scenario
def a_layer_that_is_added_with_other_values_on_each_rank_is_an_error_that_names_it() -> None:
    for frozen in (False, True):
        model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
        step_is_right(model)
        added = seeded(lambda: nn.Linear(2, 3), shoal.rank()).requires_grad_(not frozen)
        model.module.append(added)
        for _ in range(2):
            with pytest.raises(shoal.Mismatch, match=r"5\.weight: new since .*must be the same on all ranks"):
                loss_of(model, shoal.rank()).backward()
        for parameter in added.parameters():
            shoal.broadcast_(parameter.data, root=0)
        for _ in range(2):
            step_is_right(model)
        # From then on nobody looks at them any more.
        with torch.no_grad():
            added.bias.fill_(shoal.rank())
        loss_of(model, shoal.rank()).backward()


@scenario
def a_layer_that_is_added_on_one_rank_only_is_an_error_on_every_rank() -> None:
    model = DistributedDataParallel(mlp(), fusion_mb=TINY_MB)
    step_is_right(model)
    if shoal.rank() == 2:
        model.module.append(nn.Linear(2, 3))
    with pytest.raises(shoal.Mismatch, match=r"rank 0 .*rank 2 "):
        loss_of(model, shoal.rank()).backward()
    if shoal.rank() == 2:
        del model.module[5]
    for _ in range(2):
        step_is_right(model)


@scenario
def a_compiled_module_is_cut_where_its_buffers_end() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x

    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    for wrapper_too in (True, False):
        torch._dynamo.reset()
        graphs.clear()
        module = Deep()
        if not wrapper_too:
            module.compile(backend=backend)
        model = DistributedDataParallel(module, fusion_mb=1)
        compiled = torch.compile(model, backend=backend) if wrapper_too else model
        for step in range(2):
            reference = [inputs(rank, step, width=512) for rank in range(3)]
            model.zero_grad()
            plain = Deep()
            plain.load_state_dict(module.state_dict())
            sum(plain(each).square().sum() for each in reference).backward()
            compiled(reference[shoal.rank()]).square().sum().backward()
            for parameter, wanted in zip(module.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad, wanted.grad / 3, rtol=1e-3, atol=1e-4)
        assert len(graphs) == 4, "a graph for each buffer of 1 MiB, and nothing else compiled"
