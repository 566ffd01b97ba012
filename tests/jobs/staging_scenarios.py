"""What the ranks of test_staging.py and test_cuda.py do."""

import copy
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from c10d_scenarios import no_thread_starts, trained_with
from simulated_device import SimulatedDevice
from torch.nn.parallel import DistributedDataParallel

import shoal.torch
from shoal.errors import ShoalError
from shoal.job import groups, unheard
from shoal.torch.pinned_memory import PinnedMemory
from shoal.torch.staging import Transfers
from shoal.torch.tensor_operations import TensorOperations


def collectives(device: str) -> dict[str, Any]:
    """What every operation of Shoal's gives for tensors of that device."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}

    def keep(name: str, *tensors: torch.Tensor) -> None:
        found[name] = [tensor.cpu().flatten().tolist() for tensor in tensors]

    def ones(*shape: int) -> torch.Tensor:
        return torch.full(shape, float(rank + 1), device=device)

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        tensor = torch.arange(1000, device=device).to(dtype)
        dist.all_reduce(tensor)
        keep(f"all_reduce of {dtype}", tensor)
    for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        tensor = ones(3)
        dist.all_reduce(tensor, op)
        keep(f"all_reduce {op}", tensor)
    transposed = (torch.arange(6.0, device=device) * (rank + 1)).view(2, 3).t()
    dist.all_reduce(transposed)
    keep("not contiguous", transposed)
    several = [ones(2), ones(3, 1)]
    with dist._coalescing_manager():
        for tensor in several:
            dist.all_reduce(tensor)
    keep("coalesced", *several)
    numbers = [ones(2).to(torch.complex64), ones(1).to(torch.complex64)]
    dist.all_reduce_coalesced(numbers)
    keep("coalesced complex", *numbers)

    for dtype in (torch.float32, torch.float8_e5m2):
        tensor = ones(5).to(dtype)
        dist.broadcast(tensor, 1)
        keep(f"broadcast of {dtype}", tensor.float())
    flag = torch.tensor(rank == 0, device=device)
    dist.broadcast(flag, 0)
    keep("broadcast of one bool", flag)
    parts = [torch.empty(2, 3, device=device).t() for _ in range(size)]
    dist.all_gather(parts, ones(3, 2))
    keep("all_gather", *parts)
    together = torch.empty(size * 4, device=device)
    own = together[4 * rank : 4 * rank + 4].fill_(rank)
    dist.all_gather_into_tensor(together, own)
    keep("all_gather_into_tensor of a part", together)
    part = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size, device=device))
    keep("reduce_scatter_tensor", part)
    dist.reduce_scatter(part, [ones(2) * other for other in range(size)])
    keep("reduce_scatter", part)
    uneven = torch.empty(rank + 1, device=device)
    dist.reduce_scatter(uneven, [ones(other + 1) for other in range(size)])
    keep("reduce_scatter of different sizes", uneven)
    swapped = torch.empty(size, dtype=torch.int32, device=device)
    dist.all_to_all_single(swapped, torch.arange(size, dtype=torch.int32, device=device) + 10 * rank)
    keep("all_to_all_single", swapped)
    columns = [torch.empty(rank + 1, device=device) for _ in range(size)]
    dist.all_to_all(columns, [ones(other + 1) for other in range(size)])
    keep("all_to_all", *columns)
    tensor = ones(3)
    dist.reduce(tensor, 1)
    keep("reduce", tensor)
    gathered = [torch.empty(2, device=device) for _ in range(size)] if rank == 1 else []
    dist.gather(ones(2), gathered or None, dst=1)
    keep("gather", *gathered)
    own = torch.empty(2, device=device)
    dist.scatter(own, [ones(2) * other for other in range(size)] if rank == 0 else None, src=0)
    keep("scatter", own)
    with torch.inference_mode():
        tensor = ones(2)
        dist.all_reduce(tensor)
    keep("inference mode", tensor)
    dist.barrier()
    return found


def every_collective(device: str | None) -> list[str]:
    """The operations that give something else for tensors of that device than on the CPU. None: of one that is simulated."""
    dist.init_process_group("shoal")
    expected = collectives("cpu")
    if device is None:
        simulated = SimulatedDevice(eager=True)
        simulated.takes()
    found = collectives(device or "cpu")
    assert device is not None or simulated.copies > len(found), "nothing went through the device"
    dist.destroy_process_group()
    return [name for name in expected if found[name] != expected[name]]


def in_the_streams() -> dict[str, Any]:
    """Sums of what the program's stream has still to make, read in that stream; what it does meanwhile."""
    dist.init_process_group("shoal")
    device, rank = SimulatedDevice(pause=0.02), dist.get_rank()
    gradients = torch.zeros(4)
    device.takes(lambda tensor: tensor.data_ptr() == gradients.data_ptr())
    found: dict[str, Any] = {}
    for work_for in ("wait", "future"):
        seen: list[list[float]] = []

        def make() -> None:
            time.sleep(0.1 * rank)
            gradients.fill_(rank + 1.0)

        def read(seen: list[list[float]] = seen) -> None:
            seen.append(gradients.tolist())

        device.launch(make)
        begun = time.monotonic()
        work = dist.all_reduce(gradients, async_op=True)
        found[f"seconds of the call, {work_for}"] = time.monotonic() - begun
        # The first operation of rank 0 is open by now, that of rank 1 is not: the next must not be taken for it.
        time.sleep(0.06 * (1 - rank))
        other = torch.full((2,), float(rank))
        later = dist.all_reduce(other, async_op=True)
        device.synchronize()
        found[f"done when the program's stream is idle, {work_for}"] = work.is_completed()
        if work_for == "wait":
            work.wait()
        else:
            # As a future that knows its device does, a stream of its own follows the result before the callback.
            work.get_future().then(lambda done: done.value()[0]).wait()
            work.wait()
        device.launch(read)
        device.synchronize()
        found[work_for] = seen
        later.wait()
        found[f"on the CPU, {work_for}"] = other.tolist()
    # Held by nobody, waited for by nobody.
    dist.all_reduce(gradients, async_op=True)
    deadline = time.monotonic() + 10
    while gradients.tolist() != [6.0] * 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    found["not waited for"] = gradients.tolist()
    dist.destroy_process_group()
    return found


def in_streams_alone() -> dict[str, Any]:
    """Sums that rank 1 is late for, as kernels after them see them; how long the host was kept."""
    dist.init_process_group("shoal")
    device, rank = SimulatedDevice(pause=0.01), dist.get_rank()
    several = [torch.full((4,), rank + 1.0) for _ in range(4)]
    addresses = {tensor.data_ptr() for tensor in several}
    device.takes(lambda tensor: tensor.data_ptr() in addresses)
    first, second, third, fourth = several
    if rank == 1:
        time.sleep(LATE)
    begun = time.monotonic()
    for _ in range(2):
        dist.all_reduce(first)
        device.launch(lambda: first.mul_(10))
    work = dist.all_reduce(second, async_op=True)
    future = work.get_future()
    is_done = future.done()
    work.wait()
    device.launch(lambda: second.mul_(10))
    dist.broadcast(third, 1)
    device.launch(lambda: third.mul_(10))
    dist.reduce(fourth, 0)
    device.launch(lambda: fourth.mul_(10))
    found = {"seconds": time.monotonic() - begun, "futures": is_done}
    device.synchronize()
    found["sums"] = [tensor.tolist() for tensor in several]
    dist.destroy_process_group()
    return found


LATE = 1.0  # in seconds


def lost_in_a_stream(then: str) -> list[str]:
    """Rank 1 ends. What rank 0 reads, and what it gets to see of what it does then; it may be that it ends, too."""
    dist.init_process_group("shoal")
    if dist.get_rank() == 1:
        time.sleep(0.5)  # until rank 0 waits for it
        os._exit(3)
    device, tensor = SimulatedDevice(), torch.ones(2)
    device.takes(lambda each: each.data_ptr() == tensor.data_ptr())
    found = [_outcome(lambda: dist.all_reduce(tensor))]
    device.synchronize()
    found.append(str(tensor.tolist()))
    if then == "call":
        found.append(_outcome(dist.barrier))
    if then != "end":
        found.append(_outcome(dist.destroy_process_group))
    print(found)
    return found


kept_to_the_end: list[object] = []


class SlowToEnd:
    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(2 * LATE)


def open_to_the_end() -> None:
    """Every rank's program ends with an operation that rank 1 is late for, and with one that came to nothing.

    The first is done while rank 0's interpreter is about to be gone.
    """
    shoal.torch.init()
    SimulatedDevice().takes()
    nothing = Transfers(in_stream=False).begin(SimulatedDevice())
    nothing.mirror(torch.ones(2), read=True)
    kept_to_the_end.append(nothing)
    if shoal.rank() == 1:
        time.sleep(LATE)
    else:
        sys.slow_to_end = SlowToEnd()  # type: ignore[attr-defined]  # the last module that goes
    TensorOperations(groups.world()).broadcast("to the end", torch.ones(2), root=1)


def lost_in_the_wrapper() -> list[str]:
    """Rank 1 ends in the second step of training. What rank 0 gets to see, where streams wait for averages."""
    device = SimulatedDevice(eager=True)
    device.takes()
    model = shoal.torch.DistributedDataParallel(torch.nn.Linear(4, 4))
    found = []
    for step in range(3):
        if (shoal.rank(), step) == (1, 1):
            os._exit(3)
        found.append(_outcome(lambda: model(torch.ones(1, 4)).sum().backward()))
    found.append(_outcome(shoal.shutdown))
    print(found)
    return found


def wrapped_in_streams() -> dict[str, Any]:
    """A step with our wrapper, whose averages rank 1 is late for: how long the host was kept, and the mean."""
    shoal.torch.init()
    device, rank = SimulatedDevice(pause=0.01), shoal.rank()
    device.takes()
    model = shoal.torch.DistributedDataParallel(torch.nn.Linear(4, 4, bias=False), init_sync=False)
    if rank == 1:
        time.sleep(LATE)
    begun = time.monotonic()
    model(torch.full((1, 4), rank + 1.0)).sum().backward()
    found: dict[str, Any] = {"seconds": time.monotonic() - begun}
    seen: list[float] = []
    device.launch(lambda: seen.append(float(model.module.weight.grad[0, 0])))
    device.synchronize()
    found["mean"] = seen
    shoal.shutdown()
    return found


def looked_at_by_others() -> list[Any]:
    """What Works of a group say of themselves while a failure of another one is unheard, and what is raised then."""
    dist.init_process_group("shoal")
    well = dist.all_reduce(torch.ones(2), async_op=True)
    well.wait()
    unheard.note(ShoalError("of another operation"))
    found = [well.is_success(), well.exception(), _outcome(dist.barrier), _outcome(dist.barrier)]
    dist.destroy_process_group()
    return found


def wrong_arguments() -> list[str]:
    """What ranks get to see of operations that are wrong on rank 1, and of those that follow."""
    dist.init_process_group("shoal")
    unknown = _outcome(lambda: dist.all_reduce(torch.ones(2, device="meta")))
    SimulatedDevice(eager=True).takes()
    # An operation that did not give its memory back, because it failed, would keep the next waiting.
    dist.group.WORLD._transfers = Transfers(in_stream=False, memory=PinnedMemory(limit=20))
    odd_one = dist.get_rank() == 1
    found = [
        unknown,
        _outcome(lambda: dist.all_reduce(torch.ones(5 if odd_one else 4))),
        _outcome(lambda: dist.reduce_scatter_tensor(torch.empty(3 if odd_one else 2), torch.ones(4))),
        _outcome(lambda: [work.wait() for work in [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(9)]]),
        _outcome(lambda: dist.send(torch.ones(2), 1 - dist.get_rank())),
    ]
    dist.destroy_process_group()
    return found


def thread_that_cannot_start() -> list[str]:
    """What operations give while rank 1 can have no thread for callbacks, and afterwards."""
    dist.init_process_group("shoal")
    SimulatedDevice(eager=True).takes()
    with no_thread_starts() if dist.get_rank() == 1 else nullcontext():
        found = [_outcome(lambda: dist.all_reduce(torch.ones(2)))]
    tensor = torch.ones(2)
    found += [_outcome(lambda: dist.all_reduce(tensor)), str(tensor.tolist())]
    dist.destroy_process_group()
    return found


def lost_while_it_is_staged() -> str:
    """Rank 1 ends while rank 0's tensor is still on its way out."""
    dist.init_process_group("shoal")
    if dist.get_rank() == 1:
        return ""
    SimulatedDevice(pause=0.5, eager=True).takes()
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    return _outcome(future.wait)


def device_that_fails() -> list[str]:
    """What operations give while rank 1's device refuses copies, and afterwards."""
    dist.init_process_group("shoal")
    device = SimulatedDevice(eager=True)
    device.takes()
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 1:
        device.library.fail("cuMemcpyDtoHAsync")
    found = [_outcome(lambda: dist.all_reduce(torch.ones(2)))]
    device.library.fail("cuMemcpyDtoHAsync", 0)
    tensor = torch.ones(2)
    found += [_outcome(lambda: dist.all_reduce(tensor)), str(tensor.tolist())]
    dist.destroy_process_group()
    return found


def captured_for_a_graph() -> list[str]:
    """The same while the program of rank 1 captures its stream for a graph."""
    dist.init_process_group("shoal")
    device = SimulatedDevice(eager=True)
    device.takes()
    if dist.get_rank() == 1:
        device.library.capture(device.program, True)
    found = [_outcome(lambda: dist.all_reduce(torch.ones(2)))]
    device.library.capture(device.program, False)
    tensor = torch.ones(2)
    found += [_outcome(lambda: dist.all_reduce(tensor)), str(tensor.tolist())]
    dist.destroy_process_group()
    return found


def marked_only() -> list[list[complex]]:
    """Sums of tensors that are marked as conjugated or negated, on the CPU and on a device."""
    dist.init_process_group("shoal")

    def sums() -> list[complex]:
        numbers = torch.arange(4).to(torch.complex64) * (1 + 2j) * (dist.get_rank() + 1)
        conjugated, negated = numbers.clone().conj(), torch._neg_view(numbers.clone())
        imaginary = numbers.clone().conj().imag  # negated, and with gaps
        for tensor in (conjugated, negated, imaginary):
            dist.group.WORLD.allreduce([tensor]).wait()  # PyTorch's own function refuses what is conjugated
        return [complex(each) for tensor in (conjugated, negated, imaginary) for each in tensor.tolist()]

    on_cpu = sums()
    SimulatedDevice(eager=True).takes()
    found = [on_cpu, sums()]
    dist.destroy_process_group()
    return found


def trained_on_simulated_device(hook: str, steps: int) -> str:
    """As ``trained_with``, whose tensors are on the CPU."""
    SimulatedDevice(eager=True).takes()
    return trained_with(hook, steps)


def hooked_on_both() -> tuple[list[float], list[float]]:
    """The same with ``shoal.torch.comm_hook`` and gloo."""
    dist.init_process_group("gloo")
    on_cpu = _hooked("cpu")
    SimulatedDevice(eager=True).takes()
    found = on_cpu, _hooked("cpu")
    dist.destroy_process_group()
    return found


def trained_on(device: str, backend: str) -> tuple[list[float], list[float]]:
    """The parameters after training on that device and on the CPU, with tensors of the device there."""
    dist.init_process_group(backend)
    found = _hooked(device), _hooked("cpu")
    dist.destroy_process_group()
    return found


def _hooked(device: str) -> list[float]:
    torch.manual_seed(0)
    module = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device)
    model = DistributedDataParallel(module, bucket_cap_mb=0.02)
    if dist.get_backend() != "shoal":
        model.register_comm_hook(None, shoal.torch.comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 64).to(device)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()]).tolist()


def normalized_together(device: str) -> tuple[list[list[float]], list[list[float]]]:
    """What SyncBatchNorm makes on ranks with different numbers of samples, and what a BatchNorm1d makes on the CPU of the samples of all ranks.

    Outputs, the inputs' gradients, those of the weight, and the running variance; this rank's rows of the first two.
    """
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    samples = [torch.randn(5 + 3 * each, 6) for each in range(size)]
    plain = torch.nn.BatchNorm1d(6)
    model = DistributedDataParallel(torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain)).to(device))

    def passed(norm: torch.nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = inputs.detach().requires_grad_()
        outputs: torch.Tensor = norm(inputs)
        outputs.pow(3).sum().backward()
        assert inputs.grad is not None
        return outputs, inputs.grad

    ours = *passed(model, samples[rank].to(device)), model.module.weight.grad * size, model.module.running_var
    outputs, gradients = (every.split([*map(len, samples)])[rank] for every in passed(plain, torch.cat(samples)))
    theirs = outputs, gradients, plain.weight.grad, plain.running_var
    dist.destroy_process_group()
    found, expected = ([each.detach().cpu().flatten().tolist() for each in both] for both in (ours, theirs))
    return found, expected


# Cycles of a CUDA device, some tens of milliseconds.
LONG = 50_000_000


def in_cuda_streams() -> dict[str, float]:
    """Sums of what the program's stream has still to make, each read in the stream that waited for it."""
    dist.init_process_group("shoal")
    found = {}

    def late() -> torch.Tensor:
        torch.cuda._sleep(LONG)
        return torch.full((2**20,), dist.get_rank() + 1.0, device="cuda")

    tensor = late()
    dist.all_reduce(tensor, async_op=True).wait()
    found["wait"] = float(tensor.mean())
    future = dist.all_reduce(late(), async_op=True).get_future()
    found["future"] = float(future.then(lambda done: done.value()[0].mean()).wait())
    tensor = late()
    dist.all_reduce(tensor)
    found["not asynchronous"] = float(tensor.mean())
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = late()
        dist.all_reduce(tensor)
        found["another stream"] = float(tensor.mean())
    dist.destroy_process_group()
    return found


def refused_on_cuda() -> list[str]:
    """What ranks get to see of operations that are for tensors on the CPU."""
    dist.init_process_group("shoal")
    tensor = torch.ones(2, device="cuda")
    found = [
        _outcome(lambda: dist.send(tensor, 1 - dist.get_rank())),
        _outcome(lambda: dist.all_reduce(tensor.int(), dist.ReduceOp.BXOR)),
    ]
    dist.destroy_process_group()
    return found


def lost_on_cuda() -> str:
    """Rank 1 ends while rank 0's tensor is still on its way out."""
    dist.init_process_group("shoal")
    if dist.get_rank() == 1:
        return ""
    torch.cuda._sleep(20 * LONG)
    return _outcome(lambda: dist.all_reduce(torch.ones(2, device="cuda")))


def wrapped_everywhere() -> tuple[list[float], list[float], list[float], list[int]]:
    """The parameters after training with our own wrapper: on the CPU, on a device, with those of one dtype only on one.

    And how many copies to and from each device that took.
    """
    trained, copies = [_wrapped("cpu")], []
    for owned in (lambda _: True, lambda tensor: tensor.dtype == torch.float64):
        device = SimulatedDevice(eager=True)
        device.takes(owned)
        trained.append(_wrapped("cpu"))
        copies.append(device.copies)
    shoal.shutdown()
    return trained[0], trained[1], trained[2], copies


def narrowed_in_streams() -> dict[str, list[float]]:
    """Gradients of a step that travel as bfloat16: on a device, what its stream finds after the pass, and on the CPU."""
    shoal.torch.init()
    device = SimulatedDevice(pause=0.005)
    device.takes()
    on_device = _narrowed()
    seen: list[list[float]] = []
    device.launch(lambda: seen.append(on_device.grad.flatten().tolist()))  # type: ignore[union-attr]
    device.synchronize()
    device.takes(lambda _: False)
    on_cpu = _narrowed()
    shoal.shutdown()
    return {"device": seen[0], "cpu": on_cpu.grad.flatten().tolist()}  # type: ignore[union-attr]


def _narrowed() -> torch.nn.Parameter:
    model = shoal.torch.DistributedDataParallel(
        torch.nn.Linear(16, 16, bias=False), init_sync=False, wire_dtype=torch.bfloat16, error_feedback=True
    )
    torch.manual_seed(shoal.rank())
    model(torch.randn(4, 16)).sum().backward()
    parameter: torch.nn.Parameter = model.module.weight
    return parameter


def wrapped_on(device: str) -> tuple[list[float], list[float]]:
    """The same on that device, and on the CPU."""
    found = _wrapped(device), _wrapped("cpu")
    shoal.shutdown()
    return found


def _wrapped(device: str) -> list[float]:
    torch.manual_seed(0)
    module = InTwoDtypes().to(device)
    model = shoal.torch.DistributedDataParallel(
        module, fusion_mb=0.02, device_ids=None if device == "cpu" else [device]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(shoal.rank())
    for step in range(5):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    return torch.cat([each.detach().cpu().double().flatten() for each in module.state_dict().values()]).tolist()


class InTwoDtypes(torch.nn.Module):
    """With buffers, too, that the ranks see differently."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64))
        self.second = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(self.first(x).double())
        return made


def made_in_two_streams() -> float:
    """The mean of what a stream adds to a gradient late, while the rest of its buffer is made in another stream."""
    device = SimulatedDevice(eager=True)
    device.takes()
    first, last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    model = shoal.torch.DistributedDataParallel(torch.nn.Sequential(first, last))

    def go_on_in_another_stream(_: torch.Tensor) -> None:
        def add() -> None:
            time.sleep(0.1)
            last.weight.grad.data += shoal.rank() * 2.0  # a kernel; PyTorch has counted the change when it was launched

        device.launch(add)
        elsewhere.enter_context(device.inside(device.stream()))

    def watch(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        inputs[0].register_hook(go_on_in_another_stream)

    model(torch.zeros(1, 4)).mul(0).sum().backward()
    last.register_forward_pre_hook(watch)
    with ExitStack() as elsewhere:
        model(torch.zeros(1, 4)).mul(0).sum().backward()
    found = float(last.weight.grad[0, 0])
    shoal.shutdown()
    return found


def lost_while_gradients_are_staged() -> str:
    """Rank 1 ends while rank 0's gradients are still on their way out."""
    device = SimulatedDevice(eager=True)
    device.takes()
    model = shoal.torch.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(1, 4)).sum()
    if shoal.rank() == 1:
        return ""
    device.slow_down(0.5)
    return _outcome(loss.backward)


def asked_for_by_device() -> tuple[float, list[str]]:
    """A sum on the CPU in a group that was asked for as one for CUDA devices, and which devices PyTorch says that it is for."""
    dist.init_process_group("cuda:shoal")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    devices = sorted(device.type for device in dist.group.WORLD._device_types)
    dist.destroy_process_group()
    return tensor.item(), devices


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
