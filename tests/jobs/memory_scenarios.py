"""What the ranks of test_gradient_memory.py do: training on a simulated device, whose memory and the host's pinned one are counted."""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from hierarchy_scenarios import nodes_of
from simulated_device import SimulatedDevice, stand_in
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import shoal.torch
from shoal.torch import pinned_memory

LAYERS, WIDTH = 16, 256
LARGEST = WIDTH * WIDTH * 4  # bytes of a parameter
GRADIENTS = LAYERS * LARGEST
BUCKET_MB = 0.5
STEPS = 4

# Seconds: longer than blocks are kept here that nobody uses.
IDLE = 1.5

# Bytes that are no gradients: activations, votes, a few numbers.
SMALL = 64 << 10


class Counter:
    """Bytes of all storages that PyTorch has made, in every thread, since ``watches``; those that are gone do not count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def made(self, given: Any, results: Any) -> None:
        # What lies in memory that was given is a view.
        known = {each.untyped_storage()._cdata for each in _tensors(given)}
        for tensor in _tensors(results):
            storage = tensor.untyped_storage()
            if storage._cdata in known:
                continue
            with self._lock:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.most = max(self.most, self.now())

    def now(self) -> int:
        with self._lock:
            self._alive = {key: each for key, each in self._alive.items() if not each[0].expired()}
            return sum(size for _, size in self._alive.values())

    def watches(self) -> None:
        """From now on, in this thread and in all that begin."""
        _Watching(self).__enter__()
        plain, counter = threading.Thread.run, self

        def run(thread: threading.Thread) -> None:
            with _Watching(counter):
                plain(thread)

        threading.Thread.run = run  # type: ignore[method-assign]


class _Watching(TorchDispatchMode):
    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self._counter.made((args, kwargs), results)
        return results


def _tensors(nested: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(nested) if isinstance(each, torch.Tensor) and each.layout is torch.strided]


class PinnedPeak:
    """The most bytes of the host that were pinned at once."""

    def __init__(self) -> None:
        self.most = 0
        plain = pinned_memory._pinned

        def pinned(*arguments: Any) -> bool:
            done = plain(*arguments)
            self.most = max(self.most, stand_in().registered_bytes())
            return done

        pinned_memory._pinned = pinned


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def ours(module: torch.nn.Module, **arguments: Any) -> torch.nn.Module:
    return shoal.torch.DistributedDataParallel(module, fusion_mb=BUCKET_MB, **arguments)


def theirs(module: torch.nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)


def hooked(module: torch.nn.Module, state: object) -> torch.nn.Module:
    wrapped = theirs(module)
    wrapped.register_comm_hook(state, shoal.torch.comm_hook)
    return wrapped


WAYS: dict[str, tuple[str, Callable[[torch.nn.Module], torch.nn.Module]]] = {
    "wrapper": ("gloo", lambda module: ours(module, intra="off")),
    "wrapper in nodes": ("gloo", lambda module: ours(module, intra=nodes_of(2))),
    "wrapper in 16 bits": ("gloo", lambda module: ours(module, intra="off", wire_dtype=torch.bfloat16)),
    "wrapper in 16 bits, with error feedback": (
        "gloo",
        lambda module: ours(module, intra="off", wire_dtype=torch.bfloat16, error_feedback=True),
    ),
    "wrapper in nodes in 16 bits": (
        "gloo",
        lambda module: ours(module, intra=nodes_of(2), wire_dtype=torch.bfloat16),
    ),
    "backend": ("shoal", theirs),
    "PyTorch alone": ("gloo", theirs),
    "hook": ("gloo", lambda module: hooked(module, None)),
    "hook in nodes": ("gloo", lambda module: hooked(module, shoal.torch.Hierarchy(nodes_of(2)))),
}


def counted(way: str) -> dict[str, int]:
    """Bytes at most, pinned and made on the device: while it was wrapped, in the first step, later; and what was kept."""
    backend, wrap = WAYS[way]
    dist.init_process_group(backend)
    pinned_memory.OF_OPERATIONS.idle = IDLE / 2
    device = SimulatedDevice(pause=0.0, eager=True)
    device.takes()
    module, given = model(), torch.ones(1, WIDTH)
    counter, pinned = Counter(), PinnedPeak()
    counter.watches()
    let_go = pinned_memory.OF_OPERATIONS.let_go

    def let_go_of_all() -> None:
        let_go()
        device._kept.clear()  # the copies are done

    pinned_memory.OF_OPERATIONS.let_go = let_go_of_all  # type: ignore[method-assign]
    wrapped = wrap(module)
    found = {"pinned while it was wrapped": pinned.most, "made while it was wrapped": counter.most}
    _wait_for_copies(device)
    pinned.most = device.library.registered_bytes()
    counter.most = counter.now()
    for step in range(STEPS):
        wrapped.zero_grad(set_to_none=step % 2 == 0)
        wrapped(given).sum().backward()
        _wait_for_copies(device)
        if step == 0:
            found["pinned in the first step"] = pinned.most
        if step == 1:
            time.sleep(IDLE)
            # What was used at the beginning alone has been let go of before.
            pinned.most = 0
    found |= {
        "pinned later": max(pinned.most, device.library.registered_bytes()),
        "made on the device": counter.most,
        "kept on the device": counter.now(),
    }
    dist.destroy_process_group()
    return found


def _wait_for_copies(device: SimulatedDevice) -> None:
    """Nothing is kept for them any more, and what operations have given back is free."""
    time.sleep(0.3)
    device._kept.clear()
    pinned_memory.OF_OPERATIONS._sweep()
