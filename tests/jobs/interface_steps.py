"""What ranks run whose lanes are spread over two networks: for the tests that cut one of them."""

import time
from collections.abc import Callable
from pathlib import Path

import losing_servers
import numpy as np

import shoal
from shoal.job import runtime


def say_weights() -> None:
    """The weights by server and lane, and how many lanes there are."""
    shoal.init()
    welcome = runtime.current()._joined.welcome
    print("working", flush=True)
    print("weights", welcome.lanes, *welcome.terms.weights, flush=True)
    shoal.shutdown()


def average(megabytes: int) -> None:
    """One all-reduce, and the bytes that have left by each interface for it."""
    shoal.init()
    print("working", flush=True)
    array = np.full(megabytes * 250_000, shoal.rank() + 1, np.float32)
    shoal.barrier()
    before = _sent()
    result = shoal.allreduce(array, op="sum", name="gradient")
    assert result.min() == result.max() == shoal.size() * (shoal.size() + 1) / 2
    print("sent", *(after - at for after, at in zip(_sent(), before, strict=True)), flush=True)
    shoal.shutdown()


def _sent() -> list[int]:
    return [int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text()) for name in ("eth0", "eth1")]


def every_operation(steps: int, pause: float) -> None:
    """As often as is said, with a pause after each; at the end a digest of all bits that came out."""
    losing_servers.STEPS["every_operation"] = steps
    repeat = losing_servers.repeat
    losing_servers.repeat = lambda number, step: repeat(number, _slowed(step, pause))
    print("digest", losing_servers.every_operation().digest, flush=True)


def averages(steps: int, pause: float) -> None:
    """The same of what needs no link between ranks: large and small averages, and broadcasts."""
    shoal.init()
    random = np.random.default_rng(shoal.rank())

    def step(number: int) -> bytes:
        gradient = random.standard_normal(300_000, np.float32)
        shoal.allreduce_(gradient, name="gradient")
        loss = shoal.allreduce(np.float32(number + shoal.rank()), name="loss")
        order = shoal.broadcast(gradient[:50_000] * loss, root=number % shoal.size(), name="order")
        return gradient.tobytes() + np.asarray(order).tobytes()

    print("digest", losing_servers.repeat(steps, _slowed(step, pause)).digest, flush=True)
    shoal.shutdown()


def _slowed(step: Callable[[int], bytes], pause: float) -> Callable[[int], bytes]:
    def one(number: int) -> bytes:
        time.sleep(pause)
        if number == 1:
            print("working", flush=True)
        return step(number)

    return one
