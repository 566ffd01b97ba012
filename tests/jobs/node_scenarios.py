"""What the ranks of test_wrapped_nodes.py do: our wrapper, with nodes of PyTorch's groups."""

import copy
import gc
import inspect
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from hierarchy_scenarios import model_of_odd_sizes, nodes_of
from simulated_device import EagerPassage, SimulatedDevice

import shoal.torch
from shoal import _native
from shoal.gradients.agreement import Comparison
from shoal.gradients.needed_buffers import NeededBuffers
from shoal.torch.nodes import Nodes

WIDTH = 37

# Seconds until all ranks have heard of a failure.
LONGER = 5.0

# Buffers that are smaller than most parameters, and one for all.
SIZES = (0.0005, 25)


def of_node(ranks: list[int], backend: str = "gloo") -> "dist.ProcessGroup":
    """That of this rank. All ranks make those of all nodes, of which each entry of ``ranks`` has so many."""
    ends = [sum(ranks[: number + 1]) for number in range(len(ranks))]
    made = [
        dist.new_group(list(range(end - count, end)), backend=backend) for end, count in zip(ends, ranks, strict=True)
    ]
    return made[next(number for number, end in enumerate(ends) if dist.get_rank() < end)]


def inputs(step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, WIDTH, generator=made).to(dtype)


def bits_of(model: torch.nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def train(intra: Any, dtype: torch.dtype = torch.float32, fusion_mb: float = 25, steps: int = 4) -> list[float]:
    model = shoal.torch.DistributedDataParallel(model_of_odd_sizes().to(dtype), intra=intra, fusion_mb=fusion_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        model(inputs(step, dtype)).square().mean().backward()
        optimizer.step()
    return bits_of(model)


def trained(members: int, dtype: torch.dtype, backend: str) -> list[tuple[list[float], list[float]]]:
    """The plain way, and with nodes; with buffers of several sizes."""
    dist.init_process_group(backend)
    intra = nodes_of(members)
    found = [(train("off", dtype, size), train(intra, dtype, size)) for size in SIZES]
    dist.destroy_process_group()
    return found


def narrowed(on_device: bool) -> list[tuple[list[float], list[float]]]:
    """Gradients of some steps that travel as bfloat16 between two nodes of two ranks, and what they are to be."""
    dist.init_process_group("gloo")
    if on_device:
        SimulatedDevice(eager=True).takes()
    plain = shoal.torch.DistributedDataParallel(model_of_odd_sizes(), intra="off")
    model = shoal.torch.DistributedDataParallel(
        copy.deepcopy(plain.module), intra=nodes_of(2), fusion_mb=SIZES[0], wire_dtype=torch.bfloat16
    )
    found = []
    for step in range(3):
        model.zero_grad()
        model(inputs(step)).square().mean().backward()
        plain.zero_grad()
        with plain.no_sync():
            plain(inputs(step)).square().mean().backward()
        own = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])
        a, b, c, d = shoal.allgather(own.view(1, -1))
        rounded = [((one + other) / 2).bfloat16().float() for one, other in ((a, b), (c, d))]
        expected = ((rounded[0] + rounded[1]) / 2).bfloat16().float()
        mean = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        found.append((mean.tolist(), expected.tolist()))
    dist.destroy_process_group()
    return found


def of_uneven_nodes() -> tuple[bool, list[float], list[float]]:
    """Nodes of 2 and 1 ranks."""
    dist.init_process_group("gloo")
    intra = of_node([2, 1])
    model = shoal.torch.DistributedDataParallel(model_of_odd_sizes(), intra=intra)
    found = model._reducer._nodes is not None, train("off"), train(intra)
    dist.destroy_process_group()
    return found


def chosen_by_itself() -> bool:
    """Whether it is, on the CPU."""
    dist.init_process_group("gloo")
    model = shoal.torch.DistributedDataParallel(model_of_odd_sizes())
    dist.destroy_process_group()
    return model._reducer._nodes is not None


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refused() -> None:
    """Of four ranks: what is no group, groups that are no nodes, nodes on some ranks only, and of other ranks than wrap it."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs, everyone = of_node([2, 2]), dist.group.WORLD

    def wrap(**arguments: Any) -> str:
        return outcome(lambda: shoal.torch.DistributedDataParallel(torch.nn.Linear(2, 2), **arguments))

    chain = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([2, 3])]
    found = [
        wrap(intra=chain[max(0, rank - 1)]),
        wrap(intra="on"),
        wrap(intra=dist.GroupMember.NON_GROUP_MEMBER),
        wrap(intra=pairs if rank == 1 else everyone),
        wrap(intra=pairs if rank < 2 else None),
        wrap(intra=pairs, process_group=shoal.Group([0, 2])) if rank in (0, 2) else "",
        wrap(intra=pairs),
        wrap(intra=pairs),
        _with_collectives_that_fail(lambda: wrap(intra=pairs), on=rank == 3),
    ]
    print(found, flush=True)
    time.sleep(LONGER)
    os._exit(0)


def _with_collectives_that_fail(call: Callable[[], str], on: bool, after: int = 0) -> str:
    """``after``: so many gathers that go well."""
    plain, seen = Nodes.gather, [0]

    def gather(self: Nodes, elements: torch.Tensor) -> None:
        seen[0] += 1
        if seen[0] > after:
            raise RuntimeError("no bus")
        plain(self, elements)

    if on:
        Nodes.gather = gather
    try:
        return call()
    finally:
        Nodes.gather = plain


def errors_and_after(on_device: bool) -> list[str]:
    """Passes in which rank 3 lacks a gradient, has frozen a parameter, and is interrupted by an error; after each, a good one."""
    dist.init_process_group("gloo")
    if on_device:
        SimulatedDevice(eager=True).takes()
    model = shoal.torch.DistributedDataParallel(model_of_odd_sizes(), intra=nodes_of(2), fusion_mb=SIZES[0])
    module, odd_one = model.module, dist.get_rank() == 3
    last = module[3]

    def step(through: Callable[[torch.Tensor], torch.Tensor] = model) -> str:
        model.zero_grad()
        return outcome(lambda: through(inputs(0)).sum().backward())

    def without_the_last(given: torch.Tensor) -> torch.Tensor:
        return model(given) * 0 if not odd_one else _without(model, last, given)

    def fails_in_the_midst(given: torch.Tensor) -> torch.Tensor:
        handle = module[1].register_full_backward_hook(_raises) if odd_one else None
        made: torch.Tensor = model(given)
        if handle is not None:
            handle.remove()
        return made

    found = [step(), step(without_the_last), step()]
    last.bias.requires_grad_(not odd_one)
    found += [step()]
    last.bias.requires_grad_(True)
    found += [step(), step(fails_in_the_midst), step()]
    dist.destroy_process_group()
    return found


def _raises(*_: object) -> None:
    raise ValueError("in the midst")


def _without(model: torch.nn.Module, last: torch.nn.Module, given: torch.Tensor) -> torch.Tensor:
    """The forward pass with a last layer that gets no gradients."""
    plain = last.forward
    last.forward = lambda x: x.sum(1, keepdim=True)
    try:
        made: torch.Tensor = model(given)
    finally:
        last.forward = plain
    return made


def loses_a_rank(members: int, moment: str) -> None:
    """The last rank ends in the second step. The others print what they see, and after how long."""
    dist.init_process_group("gloo")
    model = shoal.torch.DistributedDataParallel(model_of_odd_sizes(), intra=nodes_of(members), fusion_mb=SIZES[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    begun = 0.0
    try:
        for step in range(3):
            if step == 1:
                before, begun = bits_of(model), time.monotonic()
                if dist.get_rank() == dist.get_world_size() - 1:
                    _end(model, moment)
            model.zero_grad()
            model(inputs(step)).sum().backward()
            optimizer.step()
    except RuntimeError as error:
        kept = bits_of(model) == before
        print(f"raised {type(error).__name__} after {time.monotonic() - begun:.1f} s, kept={kept}: {error}", flush=True)
    time.sleep(LONGER)  # or others would see this one lost, too
    os._exit(0)  # gloo may still be waiting


def _end(model: torch.nn.Module, moment: str) -> None:
    if moment == "before the pass":
        os._exit(3)
    elif moment == "in the midst":
        model.module[0].weight.register_hook(lambda _: os._exit(3))
    else:
        Nodes.gather = lambda *_: os._exit(3)


def loses_its_node() -> None:
    """The gathers of rank 1 fail in the second pass. What ranks get to see of it, and of a later one; and how long that took."""
    dist.init_process_group("gloo")
    model = shoal.torch.DistributedDataParallel(model_of_odd_sizes(), intra=nodes_of(2))

    def step() -> str:
        return outcome(lambda: model(inputs(0)).sum().backward())

    found = [step()]
    begun = time.monotonic()
    found.append(_with_collectives_that_fail(step, on=dist.get_rank() == 1))
    found.append(step())
    assert time.monotonic() - begun < 30
    print(found, flush=True)
    time.sleep(LONGER)
    os._exit(0)  # gloo may still be waiting


def loses_the_job_first(elsewhere: str, loss: Exception) -> None:
    """One rank hears of a loss before it hears that the ranks agree, and its node has begun: what all see of that pass."""
    dist.init_process_group("gloo")
    model = shoal.torch.DistributedDataParallel(
        model_of_odd_sizes(), intra=nodes_of(2), find_unused_parameters=elsewhere == "needed"
    )
    model(inputs(0)).sum().backward()
    if dist.get_rank() == 1:
        where, name = (NeededBuffers, "of_all") if elsewhere == "needed" else (Comparison, "agreed")
        plain = getattr(where, name)

        def lost(self: Any) -> None:
            plain(self)
            raise loss

        setattr(where, name, lost)
    begun = time.monotonic()
    found = outcome(lambda: model(inputs(1)).sum().backward())
    print(f"after {time.monotonic() - begun < LONGER}: {found}", flush=True)
    time.sleep(LONGER)
    os._exit(0)  # gloo may still be waiting


class Together(torch.autograd.Function):
    """In the backward pass the ranks of a group add up, as those of SyncBatchNorm do."""

    @staticmethod
    def forward(context: Any, given: torch.Tensor, group: Any) -> torch.Tensor:
        context.group = group
        return given.view_as(given)

    @staticmethod
    def backward(context: Any, *given: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = given[0].clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class AddsUp(torch.nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            given = Together.apply(layer(given), self.group)  # type: ignore[no-untyped-call]
        return given


def beside_the_programs_groups() -> list[tuple[list[float], list[float]]]:
    """The program uses the node's group in the backward pass, has others, and several wrappers. The plain way, and this."""
    dist.init_process_group("gloo")
    intra = nodes_of(2)
    dist.new_group([0, 2])
    found, wrappers = [], []
    for how in ("off", intra, intra):
        torch.manual_seed(1)
        wrappers.append(shoal.torch.DistributedDataParallel(AddsUp(intra), intra=how, fusion_mb=SIZES[0]))
    for step in range(5):
        for model in wrappers:
            model.zero_grad()
            model(inputs(step)).square().mean().backward()
        plain, *others = (
            torch.cat([each.grad.flatten() for each in model.parameters()]).tolist() for model in wrappers
        )
        found += [(plain, other) for other in others]
    dist.destroy_process_group()
    return found


def in_another_order() -> tuple[list[float], list[float]]:
    """Where PyTorch lets groups have one of their own. Another rank has the last place in one node than in the others."""
    dist.init_process_group("gloo")
    given = {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}
    groups = [dist.new_group([0, 1]), dist.new_group([3, 2], **given)]
    found = train("off"), train(groups[dist.get_rank() // 2])
    dist.destroy_process_group()
    return found


def one_after_the_other() -> list[int]:
    """How many process groups there are with each of some wrappers and hierarchies, of which one is there at a time."""
    dist.init_process_group("gloo")
    intra, counts = nodes_of(2), []
    for _ in range(4):
        model = shoal.torch.DistributedDataParallel(torch.nn.Linear(3, 3), intra=intra)
        model(torch.ones(1, 3)).sum().backward()
        hooked = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        hooked.register_comm_hook(shoal.torch.Hierarchy(intra), shoal.torch.comm_hook)
        hooked(torch.ones(1, 3)).sum().backward()
        del model, hooked
        gc.collect()
        until = time.monotonic() + 10
        while _threads("shoal-node", "shoal-hierarchy") and time.monotonic() < until:
            time.sleep(0.01)
            gc.collect()
        assert not _threads("shoal-node", "shoal-hierarchy")
        dist.barrier()
        counts.append(len(dist.distributed_c10d._world.pg_map))
    dist.destroy_process_group()
    return counts


def ends_at_once() -> None:
    """A wrapper that is gone has no thread any more; one that is there keeps no process from ending."""
    dist.init_process_group("gloo")
    intra = nodes_of(2)
    model = shoal.torch.DistributedDataParallel(model_of_odd_sizes(), intra=intra)
    model(inputs(0)).sum().backward()
    assert _threads("shoal-node") == 1
    del model
    gc.collect()
    until = time.monotonic() + 10
    while _threads("shoal-node") and time.monotonic() < until:
        time.sleep(0.01)
    assert not _threads("shoal-node")
    kept_to_the_end.append(shoal.torch.DistributedDataParallel(model_of_odd_sizes(), intra=intra))
    kept_to_the_end[0](inputs(0)).sum().backward()


kept_to_the_end: list[torch.nn.Module] = []


def _threads(*names: str) -> int:
    """How many there are whose names begin so."""
    return sum(thread.name.startswith(names) for thread in threading.enumerate())


class Alternating(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, branches: list[int]) -> torch.Tensor:
        for number in branches:
            x = torch.tanh(self.branches[number](x))
        return x


def every_way_of_training(intra: Any) -> dict[str, list[float]]:
    """Accumulated, with unused parameters, in a static graph, with uneven inputs, two wrappers in a pass, a group of some ranks."""
    rank, found = dist.get_rank(), {}

    def wrap(module: torch.nn.Module, **arguments: Any) -> shoal.torch.DistributedDataParallel:
        return shoal.torch.DistributedDataParallel(module, intra=intra, fusion_mb=SIZES[0], **arguments)

    def gradients(*models: torch.nn.Module) -> list[float]:
        every = [parameter.grad for model in models for parameter in model.parameters()]
        return torch.cat([torch.zeros(1) if each is None else each.flatten() for each in every]).tolist()

    torch.manual_seed(0)
    model = wrap(model_of_odd_sizes())
    with model.no_sync():
        model(inputs(0)).sum().backward()
        model(inputs(1)).sum().backward()
    model(inputs(2)).sum().backward()
    found["no_sync"] = gradients(model)

    torch.manual_seed(0)
    model = wrap(Alternating(), find_unused_parameters=True)
    for step, branches in enumerate([[0, 1, 2], [rank % 2], [2], [2, 0] if rank == 1 else [0, 2]]):
        model.zero_grad()
        model(inputs(step), branches).sum().backward()
        found[f"unused {step}"] = gradients(model)

    torch.manual_seed(0)
    model = wrap(Alternating(), static_graph=True)
    for step in range(2):
        model.zero_grad()
        model(inputs(step), [0, 2]).sum().backward()
    found["static_graph"] = gradients(model)

    model = wrap(model_of_odd_sizes())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for step in range(1 + rank):
            model.zero_grad()
            model(inputs(step)).square().mean().backward()
            optimizer.step()
    found["join"] = bits_of(model)

    torch.manual_seed(0)
    trunk = wrap(torch.nn.Linear(WIDTH, WIDTH))
    heads = [wrap(torch.nn.Linear(WIDTH, 5)), wrap(torch.nn.Linear(WIDTH, 7))]
    made = trunk(inputs(0))
    # In another order on the ranks.
    losses = [head(made).sum() for head in (heads if rank % 2 else heads[::-1])]
    torch.stack(losses).sum().backward()
    found["several wrappers"] = gradients(trunk, *heads)
    return found


def in_every_way(on_device: bool) -> list[tuple[str, list[float], list[float]]]:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if on_device:
        SimulatedDevice(pause=0.0005, eager=True).takes()
    plain, with_nodes = every_way_of_training("off"), every_way_of_training(nodes_of(2))
    dist.destroy_process_group()
    return [(name, plain[name], with_nodes[name]) for name in plain]


def of_some_ranks() -> list[list[float]]:
    """Of five ranks, the last four in two nodes train a model."""
    dist.init_process_group("gloo")
    intra, some = of_node([1, 2, 2]), dist.new_group([1, 2, 3, 4])
    found = []
    shoal.torch.init()
    if dist.get_rank() > 0:
        for its in ("off", intra):
            model = shoal.torch.DistributedDataParallel(model_of_odd_sizes(), process_group=some, intra=its)
            assert (model._reducer._nodes is None) == (its == "off")
            model(inputs(0)).sum().backward()
            found.append([float(parameter.grad.sum()) for parameter in model.parameters()])

        def wrap() -> str:
            linear = torch.nn.Linear(2, 2)
            return outcome(lambda: shoal.torch.DistributedDataParallel(linear, process_group=some, intra=intra))

        assert "another wrapper has intra to itself" in wrap()
        del model
        gc.collect()
        assert wrap() == "no error"
    dist.destroy_process_group()
    return found


def sums_wrongly() -> str:
    """On rank 3 slices go astray, while the module is wrapped: what each rank sees of it."""
    dist.init_process_group("gloo")
    plain = Nodes.gather

    def astray(self: Nodes, elements: torch.Tensor) -> None:
        plain(self, elements)
        elements.copy_(elements.flip(0))

    if dist.get_rank() == 3:
        Nodes.gather = astray
    found = outcome(lambda: shoal.torch.DistributedDataParallel(torch.nn.Linear(2, 2), intra=nodes_of(2)))
    dist.destroy_process_group()
    return found


class Counted:
    """A passage whose copies' bytes are counted, both ways."""

    bytes = 0

    def __init__(self, ways: _native.Ways) -> None:
        self._passage = EagerPassage(ways)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._passage, name)

    def depart(self, copies: list[tuple[int, int, int]]) -> Any:
        Counted.bytes += sum(size for *_, size in copies)
        return self._passage.depart(copies)

    def take_back(self, copies: list[tuple[int, int, int]]) -> None:
        Counted.bytes += sum(size for *_, size in copies)
        self._passage.take_back(copies)


def copied(members: int) -> tuple[int, int, int, list[float], list[float]]:
    """With a simulated device: the gradients' bytes, what a pass copies, plain and with nodes, and what is trained."""
    dist.init_process_group("gloo")
    intra = nodes_of(members)
    device = SimulatedDevice(eager=True)
    device.passage = Counted  # type: ignore[method-assign]
    device.takes()
    counted, trained = [], []
    for each in ("off", intra):
        torch.manual_seed(0)
        model = shoal.torch.DistributedDataParallel(
            torch.nn.Linear(WIDTH, 1024, bias=False), intra=each, fusion_mb=0.01
        )
        for step in range(2):
            Counted.bytes = 0
            model.zero_grad()
            model(inputs(step)).square().mean().backward()
        counted.append(Counted.bytes)
        trained.append(model.module.weight.grad.flatten().tolist())
    dist.destroy_process_group()
    return WIDTH * 1024 * 4, counted[0], counted[1], trained[0], trained[1]
