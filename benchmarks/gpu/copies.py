"""Copies of 1 to 100 MB between the GPU and the host, each way and both at once, and how long a gate takes.

    python benchmarks/gpu/copies.py

By PyTorch into memory that it has pinned, memory that Shoal has registered, and memory that is neither; and by
Shoal's own driver, as operations do it. A gate: how long after the device is ready the host reads the word that the
device writes, and how long after the host's word the device goes on; beside an event that the host asks for, and a
host function.
"""

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import stage
import torch

from shoal import _native
from shoal.torch import pinned_memory

MB = 1_000_000
LEAST_BYTES = 200 * MB  # of a turn, so that its ends count for little
TURNS = 5
BATCHES, LATENCIES = 5, 200


class Copies:
    """Both ends of copies: two tensors of the device, two of the host."""

    def __init__(self, device: stage.Device, size: int, kind: str) -> None:
        self._device = device
        self.there = [torch.ones(size, dtype=torch.uint8, device=device.place) for _ in range(2)]
        self.here = [_host(device, size, kind) for _ in range(2)]
        self._streams = device.streams(2)

    def go(self, out: bool, back: bool, times: int) -> None:
        """Returns when they are done."""
        if out:
            with self._device.inside(self._streams[0]):
                for _ in range(times):
                    self.here[0].copy_(self.there[0], non_blocking=True)
        if back:
            with self._device.inside(self._streams[1]):
                for _ in range(times):
                    self.there[1].copy_(self.here[1], non_blocking=True)
        self._device.synchronize()


class OwnCopies(Copies):
    """The same by Shoal's driver."""

    def __init__(self, device: stage.Device, size: int) -> None:
        super().__init__(device, size, "registered")
        self._ways = _native.Ways(device.accelerator.native)
        self._copies = [
            (here.data_ptr(), there.data_ptr(), size) for here, there in zip(self.here, self.there, strict=True)
        ]

    def go(self, out: bool, back: bool, times: int) -> None:
        passages = []
        for _ in range(times):
            passage = _native.Passage(self._ways)
            passages.append((passage, passage.depart(self._copies[:1] if out else [])))
            if back:
                passage.begin_return(False)
                passage.take_back(self._copies[1:])
                passage.end_return()
        for passage, gate in passages:
            gate.leave()
            passage.wait_until_over()


def _host(device: stage.Device, size: int, kind: str) -> torch.Tensor:
    if kind == "registered":
        return pinned_memory.allocate(device.accelerator, size).fill_(1)
    pinned = kind == "pinned by PyTorch" and device.is_real
    return torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)


def rates(device: stage.Device, sizes: list[int], record: stage.Record) -> None:
    """GB/s, out, back, and of both together."""
    found: dict[str, dict[str, list[float]]] = {}
    for kind in ("pinned by PyTorch", "registered", "by Shoal's driver", "pageable"):
        found[kind] = {}
        for size in sizes:
            copies = OwnCopies(device, size) if kind == "by Shoal's driver" else Copies(device, size, kind)
            ways = [(True, False), (False, True), (True, True)]
            found[kind][str(size)] = [_rate(copies, size, out, back) for out, back in ways]
            del copies
        told = "; ".join(
            f"{int(size) / MB:g} MB {' / '.join(f'{rate:.1f}' for rate in of)}" for size, of in found[kind].items()
        )
        record.say(f"copies, {kind}, GB/s out / back / both together: {told}")
        record.keep("GB/s: out, back, both", found)


def _rate(copies: Copies, size: int, out: bool, back: bool) -> float:
    times = max(1, min(100, (size if stage.rehearses() else LEAST_BYTES) // size))
    copies.go(out, back, 1)
    seconds = []
    for _ in range(2 if stage.rehearses() else TURNS):
        begun = time.perf_counter()
        copies.go(out, back, times)
        seconds.append(time.perf_counter() - begun)
    return size * times * (out + back) / statistics.median(seconds) / 1e9


def registering(device: stage.Device, sizes: list[int], record: stage.Record) -> None:
    """What it costs to pin memory."""
    found = {}
    for size in sizes:
        begun = time.perf_counter()
        memory = pinned_memory.allocate(device.accelerator, size)
        found[str(size)] = time.perf_counter() - begun
        del memory
    record.keep("seconds to register", found)
    record.say(
        "to register memory: " + ", ".join(f"{int(size) / MB:g} MB {1e3 * s:.1f} ms" for size, s in found.items())
    )


# --- Latencies: what was asked for, until it is seen, in seconds ---


def until(condition: Callable[[], Any]) -> float:
    """The clock when it first holds. Asks all the time."""
    while not condition():
        pass
    return time.perf_counter()


def gate_opens(device: stage.Device) -> Callable[[], float]:
    """The device writes a word (WriteValue) in an idle stream, the host reads it."""
    ways = _native.Ways(device.accelerator.native)

    def measure() -> float:
        passage = _native.Passage(ways)
        begun = time.perf_counter()
        gate = passage.depart([])
        seen = until(gate.is_open)
        gate.leave()
        passage.wait_until_over()
        return seen - begun

    return measure


def gate_passed(device: stage.Device) -> Callable[[], float]:
    """The host writes a word, a stream that waits for it (WaitValue) goes on, the host sees the event behind it."""
    ways = _native.Ways(device.accelerator.native)

    def measure() -> float:
        passage = _native.Passage(ways)
        gate = passage.depart([])
        until(gate.is_open)
        passage.begin_return(True)
        passage.end_return()
        begun = time.perf_counter()
        gate.leave()
        return until(passage.is_over) - begun

    return measure


def there_and_back(device: stage.Device) -> Callable[[], float]:
    """All of an operation that takes no time in the network: 4 KB out, the gate, 4 KB back."""
    ways = _native.Ways(device.accelerator.native)
    there = torch.ones(4096, dtype=torch.uint8, device=device.place)
    here = pinned_memory.allocate(device.accelerator, 4096)

    def measure() -> float:
        copies = [(here.data_ptr(), there.data_ptr(), 4096)]
        begun = time.perf_counter()
        passage = _native.Passage(ways)
        passage.follow([device.accelerator.current])
        gate = passage.depart(copies)
        passage.begin_return(True)
        passage.take_back(copies)
        passage.end_return()
        until(gate.is_open)
        gate.leave()
        return until(passage.is_over) - begun

    return measure


def event(_: stage.Device) -> Callable[[], float]:
    """An event of PyTorch's in an idle stream, asked for by the host."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def measure() -> float:
        made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        begun = time.perf_counter()
        made.record(stream)
        return until(made.query) - begun

    return measure


def host_function(device: stage.Device) -> Callable[[], float]:
    """A function of the host in an idle stream: the driver's thread posts a semaphore, without Python."""
    driver = ctypes.CDLL("libcuda.so.1" if device.is_real else device.accelerator.library.path)
    address = ctypes.c_void_p()
    got = driver.cuGetProcAddress_v2(b"cuLaunchHostFunc", ctypes.byref(address), 12000, ctypes.c_uint64(0), None)
    assert got == 0, f"cuGetProcAddress: {got}"
    if not device.is_real:
        library = device.accelerator.library
        assert library._function("cuCtxPushCurrent")(library._context) == 0
    types = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    launch = ctypes.CFUNCTYPE(*types)(address.value or 0)
    own = ctypes.CDLL(None)
    semaphore = ctypes.create_string_buffer(64)
    assert own.sem_init(semaphore, 0, 0) == 0
    post = ctypes.cast(own.sem_post, ctypes.c_void_p)
    (own_stream,) = device.streams(1)
    stream = own_stream.cuda_stream if device.is_real else device.accelerator.stream()

    def measure() -> float:
        begun = time.perf_counter()
        result = launch(stream, post, ctypes.addressof(semaphore))
        assert result == 0, f"cuLaunchHostFunc: {result}"
        return until(lambda: own.sem_trywait(semaphore) == 0) - begun

    return measure


LATENCY_KINDS = {
    "a gate opens (WriteValue)": gate_opens,
    "a stream goes on (WaitValue)": gate_passed,
    "4 KB out, gate, 4 KB back": there_and_back,
    "an event": event,
    "a host function": host_function,
}


def latencies(device: stage.Device, record: stage.Record) -> None:
    found: dict[str, list[float]] = {}
    measures = {}
    for name, make in LATENCY_KINDS.items():
        if name == "an event" and not device.is_real:
            continue
        try:
            measures[name] = make(device)
            found[name] = []
            measures[name]()
        except (AssertionError, OSError, RuntimeError) as error:
            record.say(f"{name}: cannot be measured: {error}")
            measures.pop(name, None)
    batches, count = (1, 20) if stage.rehearses() else (BATCHES, LATENCIES)
    for _ in range(batches):
        for name, measure in measures.items():
            found[name] += [measure() for _ in range(count)]
    record.keep("latencies, seconds", found)
    for name in measures:
        ordered = sorted(found[name])
        low, middle, high = ordered[0], statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
        record.say(f"{name}: median {1e6 * middle:.1f} µs, least {1e6 * low:.1f}, 99 % within {1e6 * high:.1f}")


def main() -> int:
    record = stage.Record()
    device = stage.Device(pause=0.0)
    can_wait = device.accelerator.native.streams_can_wait
    record.keep("streams can wait", can_wait)
    record.say(f"{device.name}: streams {'can' if can_wait else 'can NOT'} wait for words of the host's memory")
    latencies(device, record)
    sizes = [MB // 10, MB] if stage.rehearses() else [MB, 4 * MB, 25 * MB, 100 * MB]
    rates(device, sizes, record)
    registering(device, sizes, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
