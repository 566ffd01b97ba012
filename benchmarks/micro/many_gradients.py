"""Many tensors submitted one by one, beside one array of their size: the 161 gradients of ResNet-50, 102 MB, and the 398
of BERT-large by 8, 168 MB.

Horovod fuses small tensors, since there each costs a round of its own coordinator. Here calls with names need none. By
turns in one run:

    one array         one operation of all bytes
    each, at once     one operation a gradient, named, in the order in which a backward pass makes them; then all are
                      waited for

Shoal and gloo, which has no names. Target: at most 1.1 times the time of one array.

    sudo python benchmarks/micro/many_gradients.py [--quick] [--only PLACE]
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
from shoal.bench.naming import SHOAL
from shoal.bench.sizes import show_seconds

HEADING = "Many tensors: the gradients of a model, one operation each, beside one array of their size"
ONE, EACH = "one array", "each, at once"
MODELS = {"ResNet-50": (replay.resnet50, 1), "BERT-large": (replay.bert_large, 8)}
PLACES = {
    "lab": "lab nodes=4,servers=2,rate=1gbit",
    "lab without servers": "lab nodes=4,rate=1gbit",
    "one machine": "local n=4,nodes=1",
}
ROUNDS, QUICK_ROUNDS = 21, 3
QUICK_DIVISOR = 16
AT_MOST = 1.1


def ways(joined: Contestant, library: str, arguments: Mapping[str, Any]) -> Mapping[str, Contestant]:
    """Of one rank."""
    variables = _gradients(arguments["model"], arguments["divisor"])[::-1]

    def one(content: FloatArray) -> Buffer:
        tensors, together = replay.cut(content, content.size), replay.submit_together(library)
        return Pieces(content, lambda: together(tensors))

    def each(content: FloatArray) -> Buffer:
        tensors = replay.cut(content, [variable.elements for variable in variables])
        return Pieces(content, _submit_named(variables, tensors) if library == SHOAL else _submit(tensors))

    return {_way(library, ONE): Way(joined, one), _way(library, EACH): Way(joined, each)}


def _submit_named(variables: Sequence[Variable], tensors: Sequence[Any]) -> Callable[[], None]:
    import shoal

    named = [(variable.name, tensor) for variable, tensor in zip(variables, tensors, strict=True)]

    def submit() -> None:
        for handle in [shoal.allreduce_async_(tensor, "sum", name) for name, tensor in named]:
            handle.wait()

    return submit


def _submit(tensors: Sequence[Any]) -> Callable[[], None]:
    together = replay.submit_together("gloo")
    return lambda: together(tensors)


def _way(library: str, name: str) -> str:
    return f"{library} {name}"


def show(report: Report) -> list[str]:
    """A table, and what the target asks."""
    size = report.sizes[0]
    times = {result.contestant: result for result in report.results}
    lines = [f"{report.title}, {size / 1e6:.1f} MB", ""]
    bound = report.network.bound(SHOAL, size)
    if bound is not None:
        lines += [f"the links alone need {show_seconds(bound)}", ""]
    ratio = times[_way(SHOAL, EACH)].seconds / times[_way(SHOAL, ONE)].seconds
    return [
        *lines,
        *replay.times_table(report),
        "",
        replay.verdict(f"at most {AT_MOST:g} times the time of one array", ratio, AT_MOST, at_least=False),
    ]


def case(place_text: str) -> Callable[[bool], list[Report]]:
    def measure(quick: bool) -> list[Report]:
        return [_measure(place_text, model, quick) for model in MODELS]

    return measure


def _measure(place_text: str, model: str, quick: bool) -> Report:
    _, usual = MODELS[model]
    divisor = usual * QUICK_DIVISOR if quick else usual
    variables = _gradients(model, divisor)
    title = f"{place_text}: {len(variables)} gradients, {model}'s" + (f" by {divisor}" if divisor > 1 else "")
    arguments = {"model": model, "divisor": divisor}
    size, rounds = replay.total_bytes(variables), QUICK_ROUNDS if quick else ROUNDS
    return replay.measure(Path(__file__), place_text, size, rounds, arguments, title)


def _gradients(model: str, divisor: int) -> Sequence[Variable]:
    make, _ = MODELS[model]
    return replay.scaled(make(), divisor)


if __name__ == "__main__":
    if sys.argv[1:2] == [replay.RANK_OPTION]:
        replay.take_part(sys.argv[2], ways)
    else:
        replay.run_script(Path(__file__), HEADING, {name: case(place) for name, place in PLACES.items()}, show)
