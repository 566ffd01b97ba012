"""What the ranks of test_hierarchy.py do: nodes of PyTorch's groups on gloo, averages between them of Shoal's."""

import gc
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import shoal.torch
from shoal.torch.nodes import Nodes


def model_of_odd_sizes() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(37, 61), torch.nn.ReLU(), torch.nn.Linear(61, 3), torch.nn.Linear(3, 1))


def nodes_of(members: int) -> "dist.ProcessGroup":
    """This rank's node, of so many ranks each."""
    size = dist.get_world_size()
    groups = [dist.new_group(list(range(begin, begin + members))) for begin in range(0, size, members)]
    return groups[dist.get_rank() // members]


def train(state: object | None, dtype: torch.dtype, bucket_mb: float, steps: int = 4) -> torch.Tensor:
    """The parameters afterwards. ``state``: None for PyTorch's own averages."""
    module = model_of_odd_sizes().to(dtype)
    model = DistributedDataParallel(module, bucket_cap_mb=bucket_mb)
    if state is not None:
        model.register_comm_hook(state, shoal.torch.comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank() + 1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 37, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(members: int, dtype: torch.dtype) -> list[tuple[list[float], list[float]]]:
    """By gloo alone, and through the hierarchy; with buckets of several sizes."""
    dist.init_process_group("gloo")
    state = shoal.torch.Hierarchy(nodes_of(members))
    assert state.members == members
    found = [
        (train(None, dtype, megabytes).tolist(), train(state, dtype, megabytes).tolist()) for megabytes in (0.0001, 25)
    ]
    dist.destroy_process_group()
    return found


def by_themselves() -> tuple[int, list[list[int]], list[float], list[float]]:
    """How the ranks find their nodes, and what they train, where the hierarchy finds them itself."""
    dist.init_process_group("gloo")
    state = shoal.torch.Hierarchy()
    found = train(None, torch.float32, 25).tolist(), train(state, torch.float32, 25).tolist()
    dist.destroy_process_group()
    return state.members, state.nodes, *found


def of_uneven_nodes() -> tuple[int, list[float], list[float]]:
    dist.init_process_group("gloo")
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    state = shoal.torch.Hierarchy(groups[dist.get_rank() // 2])
    found = train(None, torch.float32, 25).tolist(), train(state, torch.float32, 25).tolist()
    dist.destroy_process_group()
    return state.members, *found


def of_other_groups() -> str:
    """Rank 1 has its node's group, all others one of all."""
    dist.init_process_group("gloo")
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1, 2, 3])]
    try:
        shoal.torch.Hierarchy(groups[0 if dist.get_rank() == 1 else 1])
    except ValueError as error:
        return str(error)
    return "no error"


def loses_a_rank(members: int) -> None:
    """Rank 3, which has the last place of its node, ends in the second step."""
    dist.init_process_group("gloo")
    state = shoal.torch.Hierarchy(nodes_of(members))
    model = DistributedDataParallel(model_of_odd_sizes(), bucket_cap_mb=0.0001)
    model.register_comm_hook(state, shoal.torch.comm_hook)
    try:
        for step in range(3):
            if (dist.get_rank(), step) == (3, 1):
                model.module[0].weight.register_hook(lambda _: os._exit(3))
            model(torch.ones(2, 37)).sum().backward()
    except RuntimeError as error:
        print("raised", error, flush=True)
        time.sleep(5)  # or others would see this one lost, too
    os._exit(0)  # gloo may still be waiting


def of_sparse_gradients() -> tuple[list[float], list[float]]:
    """The embedding is the last whose gradients come, as first layers are. By gloo alone, and through the hierarchy."""
    dist.init_process_group("gloo")
    state = shoal.torch.Hierarchy(nodes_of(2))
    found = []
    for hook_state in (None, state):
        torch.manual_seed(0)
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 1)), bucket_cap_mb=0.0001
        )
        if hook_state is not None:
            model.register_comm_hook(hook_state, shoal.torch.comm_hook)
        for _ in range(2):
            model.zero_grad()
            model(torch.tensor([dist.get_rank(), 1])).sum().backward()
        found.append(torch.cat([each.grad.to_dense().flatten() for each in model.parameters()]).tolist())
    dist.destroy_process_group()
    return found[0], found[1]


def _raises(*_: object) -> None:
    raise RuntimeError("no bus")


def fails_inside_a_node(what: str) -> None:
    """In the second of three passes, on rank 1: what all ranks see of the last two."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model_of_odd_sizes(), bucket_cap_mb=0.0001)
    model.register_comm_hook(shoal.torch.Hierarchy(nodes_of(2)), shoal.torch.comm_hook)

    def step() -> str:
        try:
            model(torch.ones(2, 37)).sum().backward()
        except RuntimeError as error:
            return str(error)
        return "no error"

    found = [step()]
    if dist.get_rank() == 1:
        setattr(Nodes, what, _raises)
    begun = time.monotonic()
    found += [step(), step()]
    print(time.monotonic() - begun < 20, found[0], found[2] != "no error", found, flush=True)
    time.sleep(5)
    os._exit(0)  # gloo may still be waiting


def is_left_in_the_midst() -> str:
    """All ranks leave a pass after its first bucket; then another model takes the same hierarchy."""
    dist.init_process_group("gloo")
    state = shoal.torch.Hierarchy(nodes_of(2))
    errors = []
    for leaves in (True, False):
        module = model_of_odd_sizes()
        model = DistributedDataParallel(module, bucket_cap_mb=0.0001)
        model.register_comm_hook(state, shoal.torch.comm_hook)
        if leaves:
            model(torch.ones(2, 37)).sum().backward()  # PyTorch cuts several buckets after the first pass
            module[0].weight.register_hook(_raises)
        try:
            model(torch.ones(2, 37)).sum().backward()
        except RuntimeError as error:
            errors.append(str(error))
    print(errors, flush=True)
    time.sleep(5)
    os._exit(0)


def one_after_the_other() -> tuple[int, int]:
    """Threads of this process after some hierarchies, and after more of them."""
    dist.init_process_group("gloo")
    counts = []
    for number in range(4):
        state = shoal.torch.Hierarchy(nodes_of(2) if number == 0 else None)
        train(state, torch.float32, 25, steps=1)
        del state
        gc.collect()
        if number in (1, 3):
            deadline = time.monotonic() + 10
            while any(each.name.startswith("shoal-hierarchy") for each in threading.enumerate()):
                assert time.monotonic() < deadline, "its threads end"
                time.sleep(0.1)
            counts.append(len(list(Path("/proc/self/task").iterdir())))
    dist.destroy_process_group()
    return counts[0], counts[1]


def of_other_backends() -> str:
    """Of two nodes, one on gloo and one on "shoal"."""
    shoal.torch.init()
    dist.init_process_group("gloo")
    groups = [dist.new_group([0, 1], backend="gloo"), dist.new_group([2, 3], backend="shoal")]
    try:
        shoal.torch.Hierarchy(groups[dist.get_rank() // 2])
    except shoal.ConfigurationError as error:
        return str(error)
    return "no error"


def of_one_that_is_no_group() -> str:
    """Rank 2 was given the group of the other node, of which it is no member."""
    dist.init_process_group("gloo")
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    try:
        shoal.torch.Hierarchy(groups[0 if dist.get_rank() == 2 else dist.get_rank() // 2])
    except shoal.ConfigurationError as error:
        return str(error)
    return "no error"
