"""What each rank does in the stages "steps" and "profile": rank 0 trains on the GPU in bfloat16, the others replay
gradients.

    python benchmarks/gpu/step_ranks.py JSON      what training_teams.py starts

Ranks that replay are on the CPU, have nothing to compute, and so are there before the GPU is. With
GPU_RUN_RANKS_ON_GPU=N the first N ranks have the GPU.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


import gc
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import models
import stage
import torch
import training_ranks
from torch import Tensor, nn
from training_ranks import Task

from shoal.bench.channel import Message

ON_GPU = "GPU_RUN_RANKS_ON_GPU"
PHASES = ("forward", "backward", "optimizer")
THREADS = 4  # of a rank that replays: it copies its gradients


class OnDevice:
    """One rank's training. In a rehearsal the device of rank 0 is simulated."""

    def __init__(self, rank: int, contestant: str, task: Task) -> None:
        gc.collect()  # of a task before
        self._rank = rank
        self._computes = rank < int(os.environ.get(ON_GPU, "1"))
        self._device = _device() if self._computes else None
        self._place = torch.device("cpu") if self._device is None else self._device.place
        if self._place.type == "cuda":
            torch.cuda.empty_cache()
        network = models.make(task.model, task.length).to(self._place)
        if task.model == "resnet50":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._network: nn.Module = models.Computed(network) if self._computes else models.Replayed(network)
        self._module = training_ranks.wrapped(self._network, contestant, task)
        self._inputs = models.inputs(task.model, task.sequences, task.length, self._place) if self._computes else ()
        self._optimizer = _optimizer(self._network, task.optimizer, self._place)
        self._threads = Threads()
        if self._computes:
            # In the thread that works on the backward pass.
            next(self._network.parameters()).register_hook(self._threads.note)  # type: ignore[no-untyped-call]

    def answer(self, command: Message) -> Message:
        does: dict[str, Callable[..., Message]] = {"steps": self.run, "hosts": self.hosts, "profile": self.profile}
        given = {name: value for name, value in command.items() if name != "do"}
        return does[command["do"]](**given)

    def run(self, count: int) -> Message:
        """So many steps, one after the other as fast as it goes."""
        self._synchronize()
        began, cpu = time.monotonic_ns(), time.process_time()
        loss = torch.zeros(())
        for _ in range(count):
            loss = self._step([])
        self._synchronize()
        ended = time.monotonic_ns()
        value = float(loss.detach().float())
        if not math.isfinite(value):
            raise ArithmeticError(f"a loss of {value}")
        return {"start": began, "end": ended, "cpu": time.process_time() - cpu, "losses": [value] * count}

    def hosts(self, count: int) -> Message:
        """So many steps, each when the device is idle: by phase, seconds of the host, and of them those in which it
        did nothing.

        Blocked is what its two threads, this one and that of the backward pass, have not worked.
        """
        found: dict[str, list[float]] = {f"{phase}, {kind}": [] for phase in PHASES for kind in ("host", "blocked")}
        found["step"] = []
        for _ in range(count):
            self._synchronize()
            began = time.perf_counter()
            marks: list[tuple[float, float]] = [(began, self._threads.worked())]
            self._step(marks)
            self._synchronize()
            found["step"].append(time.perf_counter() - began)
            for phase, (begin, before), (end, after) in zip(PHASES, marks, marks[1:], strict=False):
                found[f"{phase}, host"].append(end - begin)
                found[f"{phase}, blocked"].append(max(0.0, end - begin - (after - before)))
        return {"hosts": found}

    def profile(self, count: int, trace: str) -> Message:
        """So many steps, of which rank 0 writes the profiler's trace to that file."""
        if self._rank != 0:
            return self.run(count)
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._place.type == "cuda" else [])]
        self._synchronize()
        with profile(activities=activities) as profiler:
            for _ in range(count):
                self._step([])
            self._synchronize()
        profiler.export_chrome_trace(trace)
        return {"bytes": Path(trace).stat().st_size}

    def _step(self, marks: list[tuple[float, float]]) -> Tensor:
        """``marks``: gets the clock, and what the threads have worked, after each phase."""
        from torch.profiler import record_function

        def mark() -> None:
            marks.append((time.perf_counter(), self._threads.worked()))

        self._optimizer.zero_grad(set_to_none=True)
        with record_function("forward"), torch.autocast(self._place.type, torch.bfloat16, enabled=self._computes):
            loss: Tensor = self._module(*self._inputs)
        mark()
        with record_function("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        mark()
        with record_function("optimizer"):
            if self._computes:  # the others' parameters are of no use
                self._optimizer.step()
        mark()
        return loss

    def _synchronize(self) -> None:
        if self._device is not None:
            self._device.synchronize()


class Threads:
    """Processor time of this thread, and of that of the backward pass where it is another one."""

    def __init__(self) -> None:
        self._clocks = {time.pthread_getcpuclockid(threading.get_ident())}

    def note(self, _: Tensor) -> None:
        self._clocks.add(time.pthread_getcpuclockid(threading.get_ident()))

    def worked(self) -> float:
        return sum(time.clock_gettime(clock) for clock in self._clocks)


_made: list[stage.Device] = []


def _device() -> stage.Device:
    """One a process."""
    if not _made:
        _made.append(stage.Device())
    return _made[0]


def _optimizer(network: nn.Module, kind: str, place: torch.device) -> torch.optim.Optimizer:
    more: dict[str, Any] = {"fused": True} if place.type == "cuda" else {}
    if kind == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=1e-5, **more)
    return torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, **more)


if __name__ == "__main__":
    training_ranks.take_part(sys.argv[1], OnDevice, THREADS)
