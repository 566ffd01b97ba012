"""What the ranks of test_c10d.py do."""

import importlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import shoal
import shoal.torch
from shoal.errors import Mismatch, ShoalError
from shoal.ops import callbacks


def every_collective() -> dict[str, Any]:
    """Values by which the test knows that each did what it should."""
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {"backend": dist.get_backend(), "ranks": size}

    def reduced(op: Any, dtype: torch.dtype = torch.float32) -> list[float]:
        tensor = torch.tensor([rank + 1, 2 * rank + 1], dtype=dtype)
        dist.all_reduce(tensor, op)
        return [float(value) for value in tensor]

    found["sum"] = reduced(dist.ReduceOp.SUM)
    found["mean of bfloat16"] = reduced(dist.ReduceOp.AVG, torch.bfloat16)
    found["product"] = reduced(dist.ReduceOp.PRODUCT)
    found["min"], found["max"] = reduced(dist.ReduceOp.MIN), reduced(dist.ReduceOp.MAX)
    found["bitwise or"] = reduced(dist.ReduceOp.BOR, torch.int64)

    transposed = torch.arange(6.0).view(2, 3).t() * (rank + 1)
    dist.all_reduce(transposed)
    found["not contiguous"] = transposed.flatten().tolist()
    expanded = torch.full((1, 2), float(rank)).expand(3, 2)
    dist.all_reduce(expanded)
    found["expanded"] = expanded.flatten().tolist()
    number = torch.tensor([complex(rank, 1)])
    dist.all_reduce(number)
    found["complex"] = number.tolist()
    flags = torch.tensor([rank == 0])
    dist.broadcast(flags, size - 1)
    found["broadcast"] = flags.tolist()

    try:
        dist.broadcast(flags, size)
    except ValueError as error:
        found["wrong root"] = str(error).rpartition(": ")[2]

    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    found["all_gather"] = torch.cat(parts).tolist()
    together = torch.empty(size, 2)
    dist.all_gather_into_tensor(together, torch.full((1, 2), float(rank)))
    found["all_gather_into_tensor"] = together.flatten().tolist()
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    found["reduce_scatter_tensor"] = part.tolist()
    dist.reduce_scatter(part, [torch.full((2,), float(other)) for other in range(size)])
    found["reduce_scatter"] = part.tolist()
    uneven = torch.empty(rank + 1, dtype=torch.complex64)
    dist.reduce_scatter(uneven, [torch.full((other + 1,), complex(other, 1)) for other in range(size)])
    found["reduce_scatter of different sizes"] = uneven.tolist()
    swapped = torch.empty(size, dtype=torch.int32)
    dist.all_to_all_single(swapped, torch.arange(size, dtype=torch.int32) + 10 * rank)
    found["all_to_all_single"] = swapped.tolist()
    columns = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(columns, [torch.full((other + 1,), float(rank)) for other in range(size)])
    found["all_to_all of different sizes"] = torch.cat(columns).tolist()

    several = [torch.ones(2), torch.ones(3, 1)]
    with dist._coalescing_manager():
        for tensor in several:
            dist.all_reduce(tensor)
    found["coalesced"] = [tensor.flatten().tolist() for tensor in several]
    for operator in (dist.ReduceOp.SUM, dist.ReduceOp.BOR):
        parts = [torch.empty(1, dtype=torch.int32) for _ in range(2)]
        with dist._coalescing_manager():
            for part in parts:
                dist.reduce_scatter_tensor(part, torch.arange(size, dtype=torch.int32) + rank, operator)
        found[f"coalesced parts, {operator}"] = [int(part) for part in parts]

    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = objects
    message = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(message, 1)
    elif rank == 1:
        dist.recv(message, 0)
    found["received"] = message.tolist()
    lists = [torch.empty(1) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), lists)
    found["gathered"] = None if lists is None else torch.cat(lists).tolist()
    dist.barrier()
    dist.destroy_process_group()
    return found


def subgroups() -> tuple[float, int, int]:
    """The sum in a group of every other rank, what was sent in one of all in another order less what its first rank has sent,
    and how many are initialised afterwards."""
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(range(0, size, 2))
    odd = dist.new_group(range(1, size, 2))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=odd if rank % 2 else even)
    # Before 2.7 the ranks of a group are always in order.
    options = {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}
    everyone = dist.new_group(list(reversed(range(size))), **options)
    first = torch.tensor([rank])
    dist.broadcast(first, group_src=0, group=everyone)
    first -= size - 1 if options else 0
    dist.destroy_process_group()
    dist.init_process_group("shoal")  # a second time in the same process
    again = torch.ones(1)
    dist.all_reduce(again)
    dist.destroy_process_group()
    return float(tensor), int(first), int(again)


def by_device(backends: str, device: str) -> dict[str, Any]:
    """Collectives on tensors of a device: what kind of Work they return, and on the CPU, the results."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # which makes the backend "fake" known
    dist.init_process_group(backends)
    rank, size = dist.get_rank(), dist.get_world_size()
    reversed_group = dist.new_group(list(reversed(range(size))), sort_ranks=False)
    kinds, found = set(), {}

    def done(called: str, work: Any, tensors: list[torch.Tensor]) -> None:
        kinds.add(type(work).__name__)
        work.wait()
        if device == "cpu":
            found[called] = [value for tensor in tensors for value in tensor.flatten().tolist()]

    own = torch.full((1,), float(rank), device=device)
    everyone = [torch.empty(1, device=device) for _ in range(size)]
    together = torch.empty(size, device=device)
    done("all_gather", dist.all_gather(everyone, own, async_op=True), everyone)
    done("all_gather_into_tensor", dist.all_gather_into_tensor(together, own, async_op=True), [together])
    done("all_to_all_single", dist.all_to_all_single(together, together + rank, async_op=True), [together])
    done("all_reduce", dist.all_reduce(together, async_op=True), [together])
    done("reduce_scatter_tensor", dist.reduce_scatter_tensor(own, together, async_op=True), [own])
    done("broadcast", dist.broadcast(own, group_src=0, group=reversed_group, async_op=True), [own])
    done("gather", dist.gather(own, everyone if rank == 0 else None, async_op=True), everyone if rank == 0 else [])
    found["kinds"] = sorted(kinds)
    dist.barrier()
    if device == "cpu":
        # From C++.
        model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        model(torch.full((1, 2), float(rank))).sum().backward()
        found["gradient"] = model.module.weight.grad.flatten().tolist()
    try:
        dist.send(torch.empty(1, device="meta"), 1 - rank)
    except TypeError:
        found["send of another device"] = "TypeError"
    dist.destroy_process_group()
    return found


def into_arrays_that_are_there(elements: int) -> dict[str, Any]:
    """Gathers whose input is a part of their output, and some whose output does not fit on one rank."""
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    own = torch.zeros(size, elements)
    own[rank] = rank
    dist.all_gather_into_tensor(own, own[rank])
    found["its own part"] = own[:, -1].tolist()
    other = torch.zeros(size, elements)
    other[0] = rank
    dist.all_gather_into_tensor(other, other[0])
    found["another part"] = other[:, -1].tolist()
    both = torch.arange(size, dtype=torch.float32).repeat_interleave(elements) + 10 * rank
    dist.all_to_all_single(both, both)
    found["input and output"] = both[::elements].tolist()
    # All ranks send alike; the last expects other parts of the same sum.
    sent = torch.full((size * elements,), float(rank))
    received = torch.zeros(size * elements)
    sizes = [elements] * size
    if rank == size - 1:
        sizes[0], sizes[1] = elements - 1, elements + 1
    try:
        dist.all_to_all_single(received, sent, sizes, [elements] * size)
        found["misfit"] = received[::elements].tolist()
    except Mismatch as error:
        found["misfit"] = str(error)
    uneven = torch.ones(elements + rank)
    try:
        dist.all_gather_into_tensor(torch.zeros(size * (elements + rank)), uneven)
    except Mismatch:
        found["uneven"] = "Mismatch"
    dist.destroy_process_group()
    return found


def scattered_into_the_input(whose: int) -> int:
    """How many elements are wrong where the output of a reduce-scatter is a part of its input, ``whose`` ranks after the own."""
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    given = (torch.arange(size * 2**21) % 1000).float()
    expected = (size * given + sum(range(size))).view(size, -1)[rank]
    wrong = 0
    for _ in range(3):
        parts = (given + rank).view(size, -1)
        output = parts[(rank + whose) % size]
        dist.reduce_scatter_tensor(output, parts.view(-1))
        wrong += int((output != expected).sum())
    dist.destroy_process_group()
    return wrong


def callbacks_that_wait(rounds: int) -> float:
    """Callbacks that call operations, and wait for them, come between other operations at any time."""
    dist.init_process_group("shoal")
    following = []
    for number in range(rounds):
        future = dist.all_reduce(torch.full((4,), float(number)), async_op=True).get_future()

        def twice(done: Any) -> torch.Tensor:
            again: torch.Tensor = dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]
            return again

        following.append(future.then(twice).then(lambda done: done.value() + 1))
        dist.all_reduce(torch.ones(number % 7 + 1))
    total = sum(float(future.wait()[0]) for future in following)
    dist.destroy_process_group()
    return total


def futures_of_awaited_operations(rounds: int) -> list[int]:
    """How many futures are not done when their operation has been waited for: of those that end well, and of those that fail."""
    dist.init_process_group("shoal")
    late = [0, 0]
    for _ in range(rounds):
        for number, extent in enumerate((2, 2 + dist.get_rank())):
            work = dist.all_reduce(torch.ones(extent), async_op=True)
            future = work.get_future()
            with suppress(Mismatch):
                work.wait()
            late[number] += not future.done()
            if number == 0 and future.done():
                assert future.value()[0].tolist() == [2.0, 2.0]
    dist.destroy_process_group()
    return late


@contextmanager
def no_thread_starts() -> Iterator[None]:
    """As where a limit of processes is reached: here since each wants a stack that is larger than the addresses."""
    before = threading.stack_size(1 << 50)
    try:
        yield
    finally:
        threading.stack_size(before)


def threads_that_cannot_start() -> list[float]:
    """What rank 0 gets once there are threads again: nothing is lost of what was asked for meanwhile, or after it."""
    dist.init_process_group("shoal")
    if dist.get_rank() == 1:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1))
        dist.send(torch.full((1,), 5.0), 0)
        dist.destroy_process_group()
        return []
    received = torch.zeros(1)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with no_thread_starts():
        for call in (work.get_future, lambda: dist.irecv(received, 1)):
            with pytest.raises(RuntimeError, match="start new thread"):
                call()
    [summed] = work.get_future().wait()
    dist.recv(received, 1)
    dist.destroy_process_group()
    return [summed.item(), received.item()]


def awaited_when_callbacks_are_over() -> list[float]:
    """In a handler of atexit that is older than Shoal's, of operations that were open when callbacks ended: what comes of their futures.

    Whether one is done when its operation has been waited for, and what follows from one.
    """
    dist.init_process_group("shoal")
    if dist.get_rank() == 1:
        time.sleep(0.5)
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)]
    awaited, future = (work.get_future() for work in works)
    following = future.then(lambda done: done.value()[0] + 1)
    callbacks._close()
    works[0].wait()
    return [float(awaited.done()), following.wait().item()]


def started_again(host: str, port: int, pause: float) -> tuple[float, float]:
    """A job that meets in a store that others may have used before, as torchrun's does when it starts the ranks anew.

    Rank 0 comes ``pause`` seconds late. A sum, which goes by Shoal, and what this rank gets from the one before it, by gloo.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in ("SHOAL_RENDEZVOUS", "SHOAL_SECRET"):  # which the store carries too
        os.environ.pop(name, None)
    if rank == 0:
        time.sleep(pause)
    dist.init_process_group("shoal", store=dist.TCPStore(host, port), rank=rank, world_size=size)
    everyone = dist.new_group()
    total = torch.ones(1)
    dist.all_reduce(total, group=everyone)
    received = torch.empty(1)
    sending = dist.isend(torch.tensor([float(rank)]), (rank + 1) % size, group=everyone)
    dist.recv(received, (rank - 1) % size, group=everyone)
    sending.wait()
    dist.barrier()
    dist.destroy_process_group()
    return float(total), float(received)


class Layers(torch.nn.Sequential):
    """Three layers of 1 MiB each."""

    def __init__(self) -> None:
        super().__init__(*[torch.nn.Linear(512, 512, bias=False) for _ in range(3)])


def trained_with(hook: str, steps: int) -> str:
    """DistributedDataParallel with a communication hook; the digest of the parameters."""
    dist.init_process_group("shoal")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.02
    )
    if hook == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=5)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook in dist.BuiltinCommHookType.__members__:
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.__members__[hook])
        assert model._get_ddp_logging_data()["comm_hook"] == f"BuiltinCommHookType.{hook}"
    elif hook != "none":
        model.register_comm_hook(None, getattr(default_hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert bool(values.isfinite().all())
    everyone = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, values)
    assert all(torch.equal(values, other) for other in everyone), "the ranks have different parameters"
    dist.destroy_process_group()
    return str(float(values.sum()))


def differs_in_shape(where: str) -> tuple[str, str, float]:
    """Rank 1 does not do as the others: what this rank gets to see, and after how many seconds."""
    dist.init_process_group("gloo" if where == "Shoal's hook" else "shoal")
    odd_one = dist.get_rank() == 1
    dist.barrier()
    if where == "all_reduce":
        return _outcome(lambda: dist.all_reduce(torch.ones(5 if odd_one else 4)))
    if where == "future":
        work = dist.all_reduce(torch.ones(5 if odd_one else 4), async_op=True)
        return _outcome(lambda: work.get_future().then(lambda done: done.value()[0]).wait())
    # Buckets of other sizes: with this option PyTorch cuts them so from the beginning.
    model = DistributedDataParallel(Layers(), find_unused_parameters=True, bucket_cap_mb=4 if odd_one else 1)
    _register(where, model)
    loss = model(torch.ones(2, 512)).sum()
    return _outcome(loss.backward)


def wrong_on_one_rank(what: str) -> tuple[str, str, float, float]:
    """Rank 1 alone calls it with arguments that cannot be: what this rank gets to see, after how many seconds, and a sum after it."""
    dist.init_process_group("shoal")
    rank = dist.get_rank()
    odd_one = rank == 1
    dist.barrier()
    ones = torch.ones(2)
    given = torch.ones(2).to_sparse() if odd_one else ones
    sizes = [1, 2, 3]
    splits = [1] * dist.get_world_size()
    calls: dict[str, Callable[[], Any]] = {
        "split sizes": lambda: dist.all_to_all_single(
            torch.empty(3), torch.ones(3), splits, [4] if odd_one else splits
        ),
        "a sparse broadcast": lambda: dist.broadcast(given, 0),
        "a sparse gather": lambda: dist.all_gather([torch.ones(2) for _ in sizes], given),
        "an output of another size": lambda: dist.reduce_scatter(
            torch.ones(7 if odd_one else sizes[rank]), [torch.ones(size) for size in sizes]
        ),
        "too few inputs": lambda: dist.reduce_scatter(
            torch.ones(2), [torch.ones(2) for _ in sizes[1 if odd_one else 0 :]]
        ),
        "the first of two": lambda: (
            dist.distributed_c10d._get_default_group()
            .all_gather_single_coalesced([torch.ones(4 if odd_one else 3), torch.ones(3)], [torch.ones(1)] * 2)
            .wait()
        ),
        "lists of other lengths": lambda: (
            dist.distributed_c10d._get_default_group()
            .reduce_scatter_single_coalesced([torch.ones(1)] * (1 if odd_one else 2), [torch.ones(3)] * 2)
            .wait()
        ),
    }
    kind, text, seconds = _outcome(calls[what], (RuntimeError, ValueError, TypeError))
    after = torch.tensor([float(rank)])
    dist.all_reduce(after)
    return kind, text, seconds, float(after)


def received_late() -> float:
    """A message comes later than the group's timeout after ``irecv``, but sooner after ``wait``."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("shoal")
    group = dist.new_group(timeout=timedelta(seconds=1))
    tensor = torch.zeros(1)
    dist.barrier()
    if dist.get_rank() == 0:
        work = dist.irecv(tensor, 1, group=group)
        time.sleep(1.5)
        work.wait()
    else:
        time.sleep(2)
        dist.send(tensor + 7, 0, group=group)
    return float(tensor)


def destroyed_after_another_start() -> tuple[bool, float]:
    """The process group whose job the program has left is destroyed when another job has been joined."""
    dist.init_process_group("shoal")
    dist.barrier()
    shoal.shutdown()
    shoal.init()
    dist.destroy_process_group()
    return shoal.is_initialized(), float(shoal.allreduce(np.ones(1, np.float32), op="sum")[0])


def killed(where: str, folder: str) -> tuple[str, str, float]:
    """Rank 1 is killed: what the others get to see, and how many seconds later."""
    dist.init_process_group("gloo" if where == "Shoal's hook" else "shoal")
    rank = dist.get_rank()
    at = Path(folder) / "killed"

    def die(_: Any = None) -> None:
        at.write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "all_reduce":
        dist.barrier()
        if rank == 1:
            time.sleep(0.5)  # the others have left the barrier
            die()
        kind, text, _ = _outcome(lambda: [dist.all_reduce(torch.ones(1000)) for _ in range(10**6)])
    else:
        model = DistributedDataParallel(Layers(), bucket_cap_mb=1)
        _register(where, model)
        for _ in range(3):
            model(torch.ones(2, 512)).sum().backward()
        if rank == 1:
            model.module[1].weight.register_post_accumulate_grad_hook(die)
        kind, text, _ = _outcome(model(torch.ones(2, 512)).sum().backward)
    return kind, text, time.time() - float(at.read_text())


def too_late(how: str) -> tuple[str, str, float]:
    """Rank 1 comes later than the others wait."""
    dist.init_process_group("shoal")
    group = dist.new_group(timeout=timedelta(seconds=1 if how == "group" else 60))
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(3)
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    if how == "group":
        outcome = _outcome(work.wait)
    else:
        outcome = _outcome(lambda: work.wait(timedelta(seconds=1)))
        work.wait()
    return outcome


def _register(where: str, model: DistributedDataParallel) -> None:
    hooks = {"fp16 hook": default_hooks.fp16_compress_hook, "Shoal's hook": shoal.torch.comm_hook}
    if where in hooks:
        model.register_comm_hook(None, hooks[where])


def _outcome(call: Callable[[], Any], errors: tuple[type[Exception], ...] = (RuntimeError,)) -> tuple[str, str, float]:
    began = time.monotonic()
    try:
        call()
    except errors as error:
        kind = next(each.__name__ for each in type(error).__mro__ if each in errors or issubclass(each, ShoalError))
        return kind, str(error), time.monotonic() - began
    return "no error", "", time.monotonic() - began


def sparse_and_odd_tensors() -> list[str]:
    """What differs from plain computation, or from gloo, on 2 ranks. For a gradient of an embedding, a counter, an expanded tensor."""
    dist.init_process_group("shoal")
    gloo = dist.new_group(backend="gloo")
    rank, wrong = dist.get_rank(), []

    def check(what: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            wrong.append(f"{what}: {found}, not {wanted}")

    def sparse(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        # Row 1 on both ranks, twice on rank 0.
        rows = [1, 3, 1] if rank == 0 else [1, 0]
        values = torch.arange(2.0 * len(rows)).view(-1, 2) + rank
        return torch.sparse_coo_tensor(torch.tensor([rows]), values.to(dtype), (5, 2))

    summed, by_gloo = sparse(), sparse()
    dist.all_reduce(summed)
    dist.all_reduce(by_gloo, group=gloo)
    check("a sparse sum", summed.to_dense().tolist(), by_gloo.to_dense().tolist())
    averaged = sparse(torch.bfloat16)
    dist.all_reduce(averaged, dist.ReduceOp.AVG)
    check("a sparse mean", averaged.to_dense().tolist(), (by_gloo.to_dense() / 2).to(torch.bfloat16).tolist())
    nothing = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0, 2), (5, 2))
    dist.all_reduce(nothing)
    check("a sparse sum of nothing", (nothing.is_sparse, nothing.to_dense().count_nonzero().item()), (True, 0))

    # Lightning's Trainer averages its counters.
    for dtype in (torch.int64, torch.int32, torch.uint8):
        counter = torch.tensor(7 + rank, dtype=dtype)
        dist.all_reduce(counter, dist.ReduceOp.AVG)
        check(f"a mean of {dtype}", counter.item(), 7)
    negative = torch.tensor([-7 - rank])
    dist.all_reduce(negative, dist.ReduceOp.AVG)
    check("a mean of negative integers", negative.item(), -7)

    memory = torch.full((2,), 1.0 + rank)
    dist.all_reduce(memory[:1].expand(3))
    check("a sum in an expanded tensor", memory.tolist(), [3.0, 1.0 + rank])
    memory = torch.full((2,), 1.0 + rank)
    dist.broadcast(memory[1:].expand(2, 3), 1)
    check("a broadcast into an expanded tensor", memory.tolist(), [1.0 + rank, 2.0])
    gathered = [torch.zeros(1, 3) for _ in range(2)]
    dist.all_gather(gathered, memory[:1].expand(1, 3))
    check("a gather of expanded tensors", [one.tolist() for one in gathered], [[[1.0] * 3], [[2.0] * 3]])
    dist.destroy_process_group()
    return wrong


def begun_in_inference_mode() -> list[str]:
    """Operations on the tensors of an evaluation, whose results are waited for after it: what differs from gloo."""
    dist.init_process_group("shoal")
    gloo = dist.new_group(backend="gloo")
    rank = dist.get_rank()

    def some(factor: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return (torch.arange(6).view(2, 3) * factor + rank).to(dtype).t()

    def results(group: Any) -> dict[str, Any]:
        work: dict[str, Any] = {}
        with torch.inference_mode():
            tensors = {name: [some(number)] for number, name in enumerate(("sum", "broadcast", "future"))}
            tensors |= {"bits": [some(2, torch.int64)], "gather": [some(0), some(0)], "coalesced": [some(3), some(5)]}
            tensors["received"] = [some(0).contiguous()]
            work["sum"] = dist.all_reduce(tensors["sum"][0], group=group, async_op=True)
            work["bits"] = dist.all_reduce(tensors["bits"][0], dist.ReduceOp.BOR, group=group, async_op=True)
            work["broadcast"] = dist.broadcast(tensors["broadcast"][0], 1, group=group, async_op=True)
            work["gather"] = dist.all_gather(tensors["gather"], some(4), group=group, async_op=True)
            with dist._coalescing_manager(group=group, async_ops=True) as work["coalesced"]:
                for tensor in tensors["coalesced"]:
                    dist.all_reduce(tensor, group=group)
            messages = [dist.P2POp(dist.isend, some(7).contiguous(), 1 - rank, group)]
            messages.append(dist.P2POp(dist.irecv, tensors["received"][0], 1 - rank, group))
            sent, work["received"] = dist.batch_isend_irecv(messages)
            work["future"] = dist.all_reduce(tensors["future"][0], group=group, async_op=True).get_future()
        for each in (sent, *work.values()):
            each.wait()
        return {name: [tensor.tolist() for tensor in each] for name, each in tensors.items()}

    found, wanted = results(None), results(gloo)
    with torch.inference_mode():
        average = torch.zeros(3, 2).t() + rank
        handle = shoal.allreduce_async_(average)
    handle.wait()
    found["average"], wanted["average"] = average.tolist(), [[0.5] * 3] * 2
    dist.destroy_process_group()
    return [f"{name}: {found[name]}, not {each}" for name, each in wanted.items() if found[name] != each]
