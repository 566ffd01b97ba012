"""What each rank does in the training benchmarks: it trains a model, as many steps at a time as it is told.

    python benchmarks/lib/training_ranks.py JSON      what training_teams.py starts

The texts of a step follow from its number and the rank, and all begin with the same parameters: whoever averages, the losses are to
be the same. One thread a rank (torch.set_num_threads).
"""

import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import training_models
from torch import Tensor, nn

from shoal.bench.channel import ChannelClosed, Message, connect
from shoal.bench.contestants import join
from shoal.bench.part import end_with_conductor

ALONE = "alone"

# Variants of Shoal's own module, by name.
WIRE_FORMATS: dict[str, dict[str, Any]] = {
    "bfloat16": {"wire_dtype": torch.bfloat16},
    "feedback": {"wire_dtype": torch.bfloat16, "error_feedback": True},
}


@dataclass(frozen=True)
class Task:
    """``model``: of ``training_models.MODELS``. ``sequences``, ``length``: of the texts of a step, on each rank. ``optimizer``: "sgd"
    with ``momentum``, or "adamw". ``buffer_mb``: what the averaging module takes at once, MB of 2^20; its own choice without.
    ``round_robin``: of so many process groups, PyTorch's module uses one after the other; 0 for as it is.
    """

    model: str
    sequences: int
    length: int
    optimizer: str = "sgd"
    momentum: float = 0.0
    buffer_mb: float | None = None
    round_robin: int = 0


class Training:
    def __init__(self, rank: int, contestant: str, task: Task) -> None:
        self._network = training_models.make(task.model, task.length)
        self._module = wrapped(self._network, contestant, task)
        self._optimizer = _optimizer(self._network, task)
        self._rank, self._task = rank, task
        self._number = 0

    def run(self, count: int, skipped: int = 0) -> Message:
        """So many steps: when the first began and the last ended, in nanoseconds, and each step's loss on this rank.

        ``skipped``: after each backward pass that averages, so many do not, and only then the parameters change.
        """
        texts = [self._texts() for _ in range(count)]
        cpu, began = _cpu_seconds(), time.monotonic_ns()
        losses = [self._step(text, last=index % (skipped + 1) == skipped) for index, text in enumerate(texts)]
        ended = time.monotonic_ns()
        return {
            "start": began,
            "end": ended,
            "cpu": _cpu_seconds() - cpu,
            "losses": [float(loss) for loss in losses],
        }

    def parts(self, count: int, average: Callable[[list[Tensor]], None] | None) -> Message:
        """So many steps, and what each took for its parts, in seconds.

        ``average``: of all gradients, after a backward pass that has not averaged; None: the module does it within.
        """
        found: dict[str, list[float]] = {"forward": [], "backward": [], "averaging": [], "optimizer": []}
        for _ in range(count):
            text = self._texts()
            self._optimizer.zero_grad()
            times = [time.perf_counter()]
            with nullcontext() if average is None else self._module.no_sync():  # type: ignore[operator]
                loss = self._loss(text)
                times.append(time.perf_counter())
                loss.backward()  # type: ignore[no-untyped-call]
            times.append(time.perf_counter())
            if average is not None:
                average([one.grad for one in self._network.parameters() if one.grad is not None])
            times.append(time.perf_counter())
            self._optimizer.step()
            times.append(time.perf_counter())
            for name, begin, end in zip(found, times, times[1:], strict=False):
                found[name].append(end - begin)
        return {"parts": found}

    def answer(self, command: Message) -> Message:
        """Does what the command says."""
        if command["do"] == "steps":
            return self.run(command["count"], command.get("skipped", 0))
        if command["do"] == "parts":
            return self.parts(command["count"], average_in_buckets if command["afterwards"] else None)
        return self.digest()

    def digest(self) -> Message:
        """Of the bits of all parameters; and how many bytes those are."""
        found, size = hashlib.sha256(), 0
        for parameter in self._network.parameters():
            found.update(parameter.detach().numpy().tobytes())
            size += parameter.nbytes
        return {"digest": found.hexdigest(), "bytes": size}

    def _step(self, text: Tensor, last: bool) -> Tensor:
        with nullcontext() if last else self._module.no_sync():  # type: ignore[operator]
            loss = self._loss(text)
            loss.backward()  # type: ignore[no-untyped-call]
        if last:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss.detach()

    def _loss(self, text: Tensor) -> Tensor:
        guessed = self._module(text[:, :-1])
        return nn.functional.cross_entropy(guessed.flatten(0, 1), text[:, 1:].flatten())

    def _texts(self) -> Tensor:
        task = self._task
        self._number += 1
        return training_models.texts(task.model, self._number, self._rank, task.sequences, task.length)


def wrapped(network: nn.Module, contestant: str, task: Task) -> nn.Module:
    """``contestant``: ``alone``, ``shoal`` for Shoal's own module, else PyTorch's on the process group that there is."""
    library, _, variant = contestant.partition(" ")
    if library == ALONE:
        return network
    if library == "shoal" and variant.partition(" ")[0] != "c10d":
        from shoal.torch import DistributedDataParallel

        return DistributedDataParallel(network, fusion_mb=task.buffer_mb, **WIRE_FORMATS.get(variant, {}))
    given = {} if task.buffer_mb is None else {"bucket_cap_mb": task.buffer_mb}
    module = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True, **given)
    if task.round_robin:
        module.register_comm_hook(_RoundRobin(task.round_robin), _RoundRobin.average)
    return module


class _RoundRobin:
    """Process groups of all ranks that take turns with the buckets."""

    def __init__(self, count: int) -> None:
        self._groups = [dist.new_group() for _ in range(count)]
        self._next = 0

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        group = self._groups[self._next]
        self._next = (self._next + 1) % len(self._groups)
        buffer = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


def average_in_buckets(gradients: list[Tensor]) -> None:
    """One after the other in the default process group, in copies of about 25 MiB, as PyTorch's module has them."""
    bucket: list[Tensor] = []
    for index, gradient in enumerate(gradients):
        bucket.append(gradient)
        if index + 1 == len(gradients) or sum(one.nbytes for one in bucket) >= 25 * 2**20:
            flat = torch.cat([one.flatten() for one in bucket]).div_(dist.get_world_size())
            dist.all_reduce(flat)
            parts = flat.split([one.numel() for one in bucket])
            torch._foreach_copy_(bucket, [part.view_as(one) for part, one in zip(parts, bucket, strict=True)])
            bucket = []


def _optimizer(network: nn.Module, task: Task) -> torch.optim.Optimizer:
    if task.optimizer == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=3e-4)
    return torch.optim.SGD(network.parameters(), lr=0.002, momentum=task.momentum)


def take_part(text: str, make: Callable[[int, str, Task], Any] = Training, threads: int = 1) -> None:
    """``text``: what the program is told. ``make``: from this rank, what it takes part as, and the task; ``answer`` is asked of it."""
    asked = json.loads(text)
    channel = connect(asked["control"])
    end_with_conductor(channel)
    torch.set_num_threads(threads)
    rank, version, close = _join(asked["contestant"], dict(asked["arguments"]))
    channel.send(
        {"token": asked["token"], "rank": rank, "size": asked["task"]["size"], "pid": os.getpid(), "machine": "this"}
        | {"versions": {asked["contestant"]: version}}
    )
    training: Any = None
    try:
        while (command := channel.receive())["do"] != "quit":
            if command["do"] == "begin":
                training = None  # its arenas make room for the next one's
                training = make(rank, asked["contestant"], Task(**command["task"]))
                channel.send({})
                continue
            assert training is not None
            channel.send(training.answer(command))
    except ChannelClosed:
        os._exit(1)
    channel.close()
    close()


def _join(library: str, joining: Mapping[str, Any]) -> tuple[int, str, Callable[[], None]]:
    """The rank, the library's version, and how to leave."""
    if library == ALONE:
        return int(joining["rank"]), f"torch {torch.__version__}", lambda: None
    if "store" in joining:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        place = joining["store"]
        store = TCPStore(place["host"], place["port"], place["size"], is_master=place["rank"] == 0)
        joining = {**joining, "store": store, "rank": place["rank"], "size": place["size"]}
    joined = join(library, joining)
    return joined.rank, joined.version, joined.close


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    take_part(sys.argv[1])
