"""Many small tensors: the 398 gradients of BERT-large in arena windows against one operation each.

Horovod's paper reports that fusing tensors makes training up to 65 % faster; DistributedDataParallel's and Herring's say
why. Here the same gradients are averaged in several ways, by turns in one run:

    windows           the fusion buffers of shoal.torch, as DistributedDataParallel submits them: gradients lie in the arena
    windows, copied   as before, but every gradient is a fresh tensor that has to be copied into the arena first
    each, at once     one operation a gradient, all submitted, then all waited for
    each, in turn     one operation a gradient, each when the one before is done

Shoal and gloo (whose windows are the same pieces of memory). Sizes are BERT-large's by a divisor, so that links of 400 Mbit/s
stand for faster ones: by 16 or 64 to fit this machine, and by 256, where the bytes are as much less as 400 Mbit/s are than
100 Gbit/s, so that transmission takes as long as BERT-large does on such a network.

    python benchmarks/papers/horovod_fusion.py [--quick] [--only n4|n8|loopback]
        root, for the lab; 10 minutes; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import replay
from replay import Pieces, Variable, Way

from shoal.bench import Report
from shoal.bench.contestants import Buffer, Contestant, FloatArray
from shoal.bench.sizes import show_seconds
from shoal.gradients.layout import balanced_buffers, fusion_bytes

HEADING = "Many small tensors: BERT-large's gradients in arena windows against one operation each"
# More where no link is the limit: there, single turns differ by a quarter.
ROUNDS, LOOPBACK_ROUNDS, QUICK_ROUNDS = 7, 21, 3
WINDOWS, COPIED, AT_ONCE, IN_TURN = "windows", "windows, copied", "each, at once", "each, in turn"
# Places, how many servers average there (nodes do too where dedicated ones are fewer), the divisors of BERT-large's sizes, and
# rounds.
CASES = {
    "n4": ("lab nodes=4,servers=2,rate=400mbit", 6, (64, 256), ROUNDS),
    "n8": ("lab nodes=8,servers=8,rate=400mbit", 8, (256,), ROUNDS),
    "loopback": ("local n=4,servers=2", 6, (16, 256), LOOPBACK_ROUNDS),
}
TARGET = 3.0


class Arena:
    """The arena that shoal.torch makes for parameters of these sizes, in windows of the size that it chooses."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        import torch

        from shoal.job.runtime import current
        from shoal.torch.arena import GradientArenas

        self._parameters = [torch.nn.Parameter(torch.empty(variable.elements)) for variable in variables]
        servers = sum(weight > 0 for weight in current().weights)
        named = [(variable.name, parameter) for variable, parameter in zip(variables, self._parameters, strict=True)]
        window = fusion_bytes(replay.total_bytes(variables), servers)
        self._arenas = GradientArenas(named, range(len(named)), window)

    def in_place(self, content: FloatArray) -> Buffer:
        begin = 0
        for window in self._arenas.buffers:
            window.memory.numpy()[:] = content[begin : begin + window.memory.numel()]
            begin += window.memory.numel()
        return ArenaBuffer(self, self.submit)

    def copied(self, content: FloatArray) -> Buffer:
        fresh = replay.cut(content, [parameter.numel() for parameter in self._parameters])

        def reduce() -> None:
            for index, (parameter, gradient) in enumerate(zip(self._parameters, fresh, strict=True)):
                parameter.grad = gradient
                self._arenas.place(index)
            self.submit()

        return ArenaBuffer(self, reduce)

    def submit(self) -> None:
        import shoal

        handles = [shoal.allreduce_async_(window.memory, "sum", window.label) for window in self._arenas.buffers]
        for handle in handles:
            handle.wait()

    def fetch(self) -> FloatArray:
        import torch

        found: FloatArray = torch.cat([window.memory for window in self._arenas.buffers]).numpy()
        return found


class ArenaBuffer:
    """The arena's content as a buffer."""

    def __init__(self, arena: Arena, reduce: Callable[[], None]) -> None:
        self._arena = arena
        self._reduce = reduce

    def allreduce(self) -> None:
        self._reduce()

    def fetch(self) -> FloatArray:
        return self._arena.fetch()


def ways(joined: Contestant, library: str, arguments: Mapping[str, Any]) -> Mapping[str, Contestant]:
    variables = replay.scaled(replay.bert_large(), arguments["divisor"])
    sizes = [variable.elements for variable in variables]
    together, in_turn = replay.submit_together(library), replay.submit_in_turn(library)
    if library == "shoal":
        arena = Arena(variables)
        fused = {
            _way(library, WINDOWS): Way(joined, arena.in_place),
            _way(library, COPIED): Way(joined, arena.copied),
        }
    else:
        fused = {_way(library, WINDOWS): Way(joined, _cut(arguments["windows"], together))}
    return {
        **fused,
        _way(library, AT_ONCE): Way(joined, _cut(sizes, together)),
        _way(library, IN_TURN): Way(joined, _cut(sizes, in_turn)),
    }


def _cut(sizes: Sequence[int], submit: Callable[[Sequence[Any]], None]) -> Callable[[FloatArray], Buffer]:
    def make(content: FloatArray) -> Buffer:
        tensors = replay.cut(content, sizes)
        return Pieces(content, lambda: submit(tensors))

    return make


def _way(library: str, name: str) -> str:
    return f"{library} {name}"


def run(place_text: str, averaging: int, divisor: int, rounds: int) -> Report:
    variables = replay.scaled(replay.bert_large(), divisor)
    size = replay.total_bytes(variables)
    buffers = balanced_buffers(size, fusion_bytes(size, averaging))
    arguments = {"divisor": divisor, "windows": [buffer.size // replay.ITEMSIZE for buffer in buffers]}
    title = f"{place_text}: {len(variables)} gradients, BERT-large's by {divisor}"
    return replay.measure(Path(__file__), place_text, size, rounds, arguments, title)


def show(report: Report) -> list[str]:
    """A table of all ways, and what the target asks."""
    size = report.sizes[0]
    times = {result.contestant: result for result in report.results}
    windows = times[_way("shoal", WINDOWS)].seconds
    lines = [f"{report.title}, {size / 1e6:.1f} MB", ""]
    bound = report.network.bound("shoal", size)
    if bound is not None:
        part = bound / windows
        lines += [f"the links alone need {show_seconds(bound)}, {part:.0%} of the time that windows take", ""]
    lines.append(f"{'':24}  {'median':>8}  {'fastest to slowest':>20}  {'x windows':>9}  {'CPU s':>6}")
    for name, result in times.items():
        spread = f"{show_seconds(result.fastest)} to {show_seconds(result.slowest)}"
        cpu = result.cpu_per_gb * size / 1e9
        lines.append(
            f"{name:24}  {show_seconds(result.seconds):>8}  {spread:>20}  {result.seconds / windows:9.2f}  {cpu:6.3f}"
        )
    lines.append("")
    for way in (AT_ONCE, IN_TURN):
        ratio = times[_way("shoal", way)].seconds / windows
        lines.append(
            replay.verdict(f"windows at least {TARGET:g} times as fast as {way}", ratio, TARGET, at_least=True)
        )
    return lines


def case(name: str) -> Callable[[bool], list[Report]]:
    place_text, averaging, divisors, rounds = CASES[name]

    def measure(quick: bool) -> list[Report]:
        if quick:
            return [run(place_text, averaging, divisors[-1], QUICK_ROUNDS)]
        return [run(place_text, averaging, divisor, rounds) for divisor in divisors]

    return measure


if __name__ == "__main__":
    if sys.argv[1:2] == [replay.RANK_OPTION]:
        replay.take_part(sys.argv[2], ways)
    else:
        replay.run_script(Path(__file__), HEADING, {name: case(name) for name in CASES}, show)
