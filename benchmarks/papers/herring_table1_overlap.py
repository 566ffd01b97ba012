"""Table I of the Herring paper: what averaging adds to a training step after the backward pass.

With NCCL the paper's BERT step was shortest when averaging began only after the backward pass, since both want the same GPU.
Here averaging has the network to itself: a backward pass that takes as long as averaging should hide nearly all of it. What
cannot be hidden is the last buffer, which is complete only when the backward pass is. So the target: the time that averaging
adds after the backward pass is at most 10 % of the averaging time, and the last buffer's.

The step is real: DistributedDataParallel (Shoal's, and PyTorch's own with gloo) around a module whose backward pass hands out
the gradients of BERT-large at the times at which they became ready in a recorded one (herring_table1_record_backward.py), stretched to
the time that averaging takes. It sleeps in between instead of computing, as a processor does that waits for its GPU; gradients
are zeroed in place between steps, so each is written once. Sizes are BERT-large's by 64. Rows, all by turns in one run:

    averaging alone         every gradient is ready at once
    last buffer alone       one operation of the last buffer's size
    backward pass alone     the replay, without averaging (no_sync)
    step                    the replay with averaging, in buffers as DistributedDataParallel chooses them
    step, 200 of 680 ...    in buffers of that part of the model: the paper's thresholds; 680 of 680 is without overlap

PyTorch's buffers are as large as Shoal's (bucket_cap_mb).

    python benchmarks/papers/herring_table1_overlap.py [--quick]     root, for the lab; 4 minutes; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy
import replay
import torch
from replay import Variable, Way
from results import FOLDER

from shoal.bench import Report, Result
from shoal.bench.contestants import Buffer, Contestant, FloatArray
from shoal.bench.sizes import show_seconds
from shoal.gradients.layout import MIB, balanced_buffers, fusion_bytes

TRACE = FOLDER / "herring_table1_overlap_trace.json"
# The place, its servers, the divisor of BERT-large's sizes and the rounds.
FULL = "lab nodes=8,servers=8,rate=400mbit", 8, 64, 7
QUICK = "lab nodes=4,servers=4,rate=400mbit", 4, 128, 3
FIRST_ROUNDS = 3
HEADING = "Herring's Table I: what averaging adds to a step after the backward pass"
ALLOWED = 0.10
# MB of 680, and the paper's milliseconds a step with NCCL on 64 GPUs.
THRESHOLDS = {680: 714, 200: 720, 50: 769, 25: 820}
AVERAGING, LAST, BACKWARD, STEP = "averaging alone", "last buffer alone", "backward pass alone", "step"
NAMES = {"shoal": "Shoal", "gloo": "PyTorch with gloo"}


@dataclass(frozen=True)
class Trace:
    """Gradients in the order in which they become ready; ``parts``: when, as parts of the whole backward pass."""

    gradients: list[Variable]
    parts: list[float]

    @staticmethod
    def read(divisor: float) -> "Trace":
        recorded = json.loads(TRACE.read_text(encoding="utf-8"))["gradients"]
        whole = [Variable(gradient["name"], gradient["elements"]) for gradient in recorded]
        return Trace(replay.scaled(whole, divisor), [gradient["part"] for gradient in recorded])

    @property
    def size(self) -> int:
        return replay.total_bytes(self.gradients)


class Clock:
    """When the gradients of the backward pass that is on are ready."""

    def __init__(self, parts: list[float]) -> None:
        self._parts = parts
        self._begin = self._seconds = 0.0

    def start(self, seconds: float) -> None:
        self._begin, self._seconds = time.monotonic(), seconds

    def wait(self, index: int) -> None:
        left = self._begin + self._parts[index] * self._seconds - time.monotonic()
        if left > 0:
            time.sleep(left)


class Ready(torch.autograd.Function):
    """Passes its input on; in the backward pass, hands out a parameter's gradient when its time has come."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parameter: torch.Tensor, recorded: "Recorded", index: int) -> torch.Tensor:
        ctx.recorded, ctx.index = recorded, index
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *passed: torch.Tensor) -> tuple[Any, ...]:
        ctx.recorded.clock.wait(ctx.index)
        return passed[0], ctx.recorded.content[ctx.index], None, None


class Recorded(torch.nn.Module):
    """A module whose backward pass is a recorded one: parameter i gets ``content[i]``."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.clock = Clock(trace.parts)
        self.content: list[torch.Tensor] = []
        # Registered as in a real model: what comes last in the backward pass first.
        for gradient in reversed(trace.gradients):
            self.register_parameter(gradient.name.replace(".", "_"), torch.nn.Parameter(torch.zeros(gradient.elements)))
        self.ordered = list(self.parameters())[::-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in reversed(range(len(self.ordered))):
            x = Ready.apply(x, self.ordered[index], self, index)  # type: ignore[no-untyped-call]
        return x


class Step:
    """A buffer whose all-reduce is a backward pass of ``wrapped``, a DistributedDataParallel around ``module``."""

    def __init__(self, module: Recorded, wrapped: torch.nn.Module, content: FloatArray, seconds: float) -> None:
        self._module, self._wrapped, self._seconds = module, wrapped, seconds
        module.content = replay.cut(content, [parameter.numel() for parameter in module.ordered])
        self._losses = [self._forward()]

    def allreduce(self) -> None:
        loss = self._losses.pop() if self._losses else self._forward()
        self._module.clock.start(self._seconds)
        loss.backward()

    def fetch(self) -> FloatArray:
        """The sums: the mean by the number of ranks, which is exact for the powers of two that are used here."""
        sums: FloatArray = gradients(self._module) * numpy.float32(_ranks())
        return sums

    def _context(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _forward(self) -> Any:
        """The loss, ready for a backward pass. Gradients are zero but in their place, so that they are written there, once."""
        self._module.zero_grad(set_to_none=False)
        with self._context():
            return self._wrapped(torch.zeros(1, requires_grad=True)).sum()


class Alone(Step):
    """The backward pass without averaging. Its gradients are summed only to be checked."""

    def fetch(self) -> FloatArray:
        import shoal

        found: FloatArray = shoal.allreduce(gradients(self._module), "sum")
        return found

    def _context(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._wrapped.no_sync()  # type: ignore[operator]
        return context


class Last:
    """One operation on the last ``elements`` of an array. The others are summed only to be checked."""

    def __init__(self, content: FloatArray, elements: int, submit: Callable[[Any], None]) -> None:
        self._content, self._submit = content, submit
        self._first, self._last = replay.cut(content, [content.size - elements, elements])

    def allreduce(self) -> None:
        self._submit([self._last])

    def fetch(self) -> FloatArray:
        self._submit([self._first])
        return self._content


def gradients(module: Recorded) -> FloatArray:
    found: FloatArray = torch.cat([_gradient(parameter) for parameter in module.ordered]).numpy()
    return found


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _ranks() -> int:
    import shoal

    return shoal.size() if shoal.is_initialized() else torch.distributed.get_world_size()


class Wrapper:
    """Wraps modules of one trace for one library; one wrapped module for each size of buffers."""

    def __init__(self, joined: Contestant, library: str, trace: Trace) -> None:
        self._joined, self._library, self._trace = joined, library, trace

    def steps(self, buffer_bytes: int, kinds: Mapping[str, tuple[type[Step], float]]) -> dict[str, Way]:
        """Ways by name that share one wrapped module, each with its kind of step and length of the backward pass."""
        module = Recorded(self._trace)
        wrapped = self._wrap(module, buffer_bytes)

        def maker(kind: type[Step], length: float) -> Callable[[FloatArray], Buffer]:
            return lambda content: kind(module, wrapped, content, length)

        return {name: Way(self._joined, maker(kind, length)) for name, (kind, length) in kinds.items()}

    def _wrap(self, module: Recorded, buffer_bytes: int) -> torch.nn.Module:
        if self._library == "shoal":
            from shoal.torch import DistributedDataParallel

            return DistributedDataParallel(module, fusion_mb=buffer_bytes / MIB)
        return torch.nn.parallel.DistributedDataParallel(
            module, bucket_cap_mb=buffer_bytes / MIB, gradient_as_bucket_view=True
        )


def ways(joined: Contestant, library: str, arguments: Mapping[str, Any]) -> Mapping[str, Contestant]:
    trace, length, window = Trace.read(arguments["divisor"]), arguments["backward"], arguments["window"]
    wrapper = Wrapper(joined, library, trace)
    kinds: dict[str, tuple[type[Step], float]] = {AVERAGING: (Step, 0.0), STEP: (Step, length)}
    if library == "shoal":
        kinds[BACKWARD] = (Alone, length)
    made = wrapper.steps(window, kinds)
    submit = replay.submit_together(library)
    last = balanced_buffers(trace.size, window)[-1].size // replay.ITEMSIZE
    made[LAST] = Way(joined, lambda content: Last(content, last, submit))
    for threshold in arguments["thresholds"]:
        size = -(-trace.size * threshold // max(THRESHOLDS))
        made |= wrapper.steps(size, {_threshold_step(threshold): (Step, length)})
    order = (AVERAGING, LAST, BACKWARD, STEP, *map(_threshold_step, arguments["thresholds"]))
    return {_way(library, name): made[name] for name in order if name in made}


def _threshold_step(threshold: int) -> str:
    return f"{STEP}, {threshold} of {max(THRESHOLDS)}"


def _way(library: str, name: str) -> str:
    return f"{library} {name}"


def run(quick: bool) -> Report:
    """First what averaging takes, then everything, with a backward pass of that length."""
    place_text, servers, divisor, rounds = QUICK if quick else FULL
    trace = Trace.read(divisor)
    window = fusion_bytes(trace.size, servers)
    arguments = {"divisor": divisor, "window": window, "thresholds": [], "backward": 0.0}
    script, title = Path(__file__), f"{place_text}: {len(trace.gradients)} gradients, BERT-large's by {divisor}"
    first = replay.measure(script, place_text, trace.size, FIRST_ROUNDS, arguments, title, libraries=["shoal"])
    arguments["backward"] = first.result(_way("shoal", AVERAGING), trace.size).seconds
    arguments["thresholds"] = [680, 50] if quick else list(THRESHOLDS)
    report = replay.measure(script, place_text, trace.size, rounds, arguments, title)
    report.facts["backward pass"] = f"{arguments['backward']:.4f} s, replayed from {TRACE.name}"
    report.facts["buffers"] = f"{len(balanced_buffers(trace.size, window))} of {window} B, as computed from the model"
    return report


def show(report: Report) -> list[str]:
    size = report.sizes[0]
    results = {result.contestant: result for result in report.results}
    length = float(report.facts["backward pass"].split()[0])
    lines = [f"{report.title}, {size / 1e6:.1f} MB; the backward pass takes {show_seconds(length)}", ""]
    lines.append(f"{'':36}  {'median':>8}  {'fastest to slowest':>20}  {'after the backward pass':>23}")
    for library, shown in NAMES.items():
        for way in _ways_of(report, library):
            result = results[_way(library, way)]
            spread = f"{show_seconds(result.fastest)} to {show_seconds(result.slowest)}"
            added = show_seconds(result.seconds - length) if way.startswith(STEP) else ""
            lines.append(f"{shown + ' ' + way:36}  {show_seconds(result.seconds):>8}  {spread:>20}  {added:>23}")
    lines += ["", *_thresholds(report, results), "", *_verdicts(results, length)]
    return lines


def _ways_of(report: Report, library: str) -> list[str]:
    return [name.partition(" ")[2] for name in report.contestants if name.startswith(f"{library} ")]


def _thresholds(report: Report, results: Mapping[str, Result]) -> list[str]:
    """The paper's table, each column by its own step without overlap."""
    lines = ["steps by the one without overlap:", f"{'threshold':>12}  {'paper, NCCL':>11}  {'Shoal':>6}  {'gloo':>6}"]
    for threshold, paper in THRESHOLDS.items():
        step, whole = _threshold_step(threshold), _threshold_step(max(THRESHOLDS))
        if _way("shoal", step) in results:
            ours, theirs = (
                results[_way(library, step)].seconds / results[_way(library, whole)].seconds for library in NAMES
            )
            lines.append(f"{threshold:>5} of 680  {paper / THRESHOLDS[680]:>11.2f}  {ours:>6.2f}  {theirs:>6.2f}")
    return lines


def _verdicts(results: Mapping[str, Result], length: float) -> list[str]:
    averaging, last, step = (results[_way("shoal", way)].seconds for way in (AVERAGING, LAST, STEP))
    added, allowed = step - length, ALLOWED * averaging + last
    what = f"averaging adds {show_seconds(added)} after the backward pass, allowed {show_seconds(allowed)}; added by allowed"
    faster = results[_way("gloo", STEP)].seconds / step
    alone = results[_way("shoal", BACKWARD)]
    busy = statistics.median((turn.busy or 0.0) - turn.cpu for turn in alone.turns) / alone.seconds
    return [
        f"beside us, {busy:.2f} processors were busy during the backward pass alone",
        f"the backward pass takes {length / averaging:.3f} of the averaging time",
        replay.verdict(what, added / allowed, 1.0, at_least=False),
        f"the step is {faster:.2f} times as fast as PyTorch's with gloo",
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == [replay.RANK_OPTION]:
        replay.take_part(sys.argv[2], ways)
    else:
        replay.run_script(Path(__file__), HEADING, {"n8": lambda quick: [run(quick)]}, show)
