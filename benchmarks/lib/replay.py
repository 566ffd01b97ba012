"""What the benchmarks of many tensors and of training steps share: a model's gradients, and ranks that do with them what a
script says.

A script has *ways*: contestants of ``shoal.bench`` that take the same flat array of float32 and sum it over all ranks, each
in its own manner (one operation, many, windows, a whole training step). All ways of a library live in one process a rank.
``measure`` starts these processes at a place, the script itself being their program, and lets the ways take turns just as
``shoal bench`` does with libraries: it checks every result, and times from the first rank's start to the last rank's end.

    python SCRIPT --rank JSON       what ``measure`` runs on every rank: the script calls ``take_part``
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results import results_of

from shoal.bench.channel import ChannelClosed, connect
from shoal.bench.conductor import Conductor, Player, unix_stage
from shoal.bench.contestants import Buffer, Contestant, FloatArray, join
from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL
from shoal.bench.part import Part, end_with_conductor, introduction
from shoal.bench.places import LabPlace, LabShape, LocalPlace, Place
from shoal.bench.plan import Plan
from shoal.bench.progress import Progress
from shoal.bench.report import Report
from shoal.bench.shoal_teams import ShoalTeams
from shoal.bench.sizes import show_seconds
from shoal.bench.table import notes
from shoal.bench.teams import Troupe, start_gloo
from shoal.bench.watch import foreign_load

LIBRARIES = (SHOAL, "gloo")
HOROVOD = "horovod"
RANK_OPTION = "--rank"
ITEMSIZE = 4

# BERT-large, as its authors trained it: 24 layers of width 1024 and inner width 4096, 30522 words, 512 positions.
_LAYERS, _WIDTH, _INNER, _WORDS, _POSITIONS = 24, 1024, 4096, 30522, 512

Ways = Callable[[Contestant, str, Mapping[str, Any]], Mapping[str, Contestant]]


@dataclass(frozen=True)
class Variable:
    """A parameter of a model: what it is called and how many elements it has."""

    name: str
    elements: int


def bert_large() -> list[Variable]:
    """The 398 variables of BERT-large with both its training heads, in the order of the forward pass: 336 M elements."""
    norm = {"gamma": _WIDTH, "beta": _WIDTH}
    embeddings = {"word": _WORDS * _WIDTH, "position": _POSITIONS * _WIDTH, "segment": 2 * _WIDTH, **norm}
    square = {"kernel": _WIDTH * _WIDTH, "bias": _WIDTH}
    layer = {
        **{f"{name}.{part}": size for name in ("query", "key", "value", "output") for part, size in square.items()},
        **{f"output.norm.{part}": size for part, size in norm.items()},
        "inner.kernel": _WIDTH * _INNER,
        "inner.bias": _INNER,
        "outer.kernel": _INNER * _WIDTH,
        "outer.bias": _WIDTH,
        **{f"outer.norm.{part}": size for part, size in norm.items()},
    }
    heads = {
        **{f"pooler.{part}": size for part, size in square.items()},
        **{f"words.{part}": size for part, size in {**square, **norm, "output.bias": _WORDS}.items()},
        "next.kernel": 2 * _WIDTH,
        "next.bias": 2,
    }
    sizes = {f"embeddings.{part}": size for part, size in embeddings.items()}
    sizes |= {f"layer{number}.{part}": size for number in range(_LAYERS) for part, size in layer.items()}
    return [Variable(name, size) for name, size in {**sizes, **heads}.items()]


def resnet50() -> list[Variable]:
    """The 161 variables of ResNet-50 (He et al., "Deep Residual Learning", Table 1), in the order of the forward pass: 25.6 M
    elements.
    """
    sizes: dict[str, int] = {"conv1": 7 * 7 * 3 * 64, **_norm("bn1", 64)}
    given = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            shapes = ((1, given, width), (3, width, width), (1, width, 4 * width))
            for number, (edge, before, after) in enumerate(shapes, 1):
                sizes |= {f"{name}.conv{number}": edge * edge * before * after, **_norm(f"{name}.bn{number}", after)}
            if block == 0:
                sizes |= {f"{name}.downsample": given * 4 * width, **_norm(f"{name}.downsample.bn", 4 * width)}
            given = 4 * width
    sizes |= {"fc.weight": 2048 * 1000, "fc.bias": 1000}
    return [Variable(name, size) for name, size in sizes.items()]


def _norm(name: str, width: int) -> dict[str, int]:
    return {f"{name}.weight": width, f"{name}.bias": width}


def scaled(variables: Sequence[Variable], divisor: float) -> list[Variable]:
    """The same variables with a ``divisor``-th of the elements each, at least one."""
    return [Variable(variable.name, max(1, round(variable.elements / divisor))) for variable in variables]


def total_bytes(variables: Sequence[Variable]) -> int:
    return sum(variable.elements for variable in variables) * ITEMSIZE


class Way:
    """A contestant that is another one of the same process, but for what it makes of an array."""

    def __init__(self, joined: Contestant, make: Callable[[FloatArray], Buffer]) -> None:
        self.version = joined.version
        self.limits = joined.limits
        self.rank = joined.rank
        self.size = joined.size
        self.barrier = joined.barrier
        self.buffer = make

    def close(self) -> None:
        """The process closes what it has joined, once for all ways."""


class Pieces:
    """A buffer of several tensors that are views on ``content``, and what one all-reduce of them all is."""

    def __init__(self, content: FloatArray, reduce: Callable[[], None]) -> None:
        self._content = content
        self._reduce = reduce

    def allreduce(self) -> None:
        self._reduce()

    def fetch(self) -> FloatArray:
        return self._content


def cut(content: FloatArray, sizes: int | Sequence[int]) -> list[Any]:
    """Tensors of so many elements each, or all of one size but the last, that are views on ``content``."""
    import torch

    whole: Any = torch.from_numpy(content)
    return list(whole.split(sizes if isinstance(sizes, int) else list(sizes)))


def submit_together(library: str) -> Callable[[Sequence[Any]], None]:
    """A function that sums tensors in place, an operation each: all submitted, then all waited for."""
    if library == SHOAL:
        import shoal

        def submit(tensors: Sequence[Any]) -> None:
            for handle in [shoal.allreduce_async_(tensor, "sum") for tensor in tensors]:
                handle.wait()
    else:
        import torch.distributed as dist

        def submit(tensors: Sequence[Any]) -> None:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    return submit


def submit_in_turn(library: str) -> Callable[[Sequence[Any]], None]:
    """As ``submit_together``, each when the one before is done."""
    together = submit_together(library)

    def submit(tensors: Sequence[Any]) -> None:
        for tensor in tensors:
            together([tensor])

    return submit


def measure(
    script: Path,
    place_text: str,
    size: int,
    rounds: int,
    arguments: Mapping[str, Any],
    title: str,
    environment: Mapping[str, str] | None = None,
    libraries: Sequence[str] = LIBRARIES,
) -> Report:
    """All ways of all libraries by turns, ``rounds`` times, on ``size`` bytes, at a place of its own.

    ``place_text``: ``lab nodes=4,servers=2,rate=400mbit`` (root) or ``local n=4,servers=2``. ``arguments``: for the script's
    ways, whatever JSON can carry. ``environment``: added to that of Shoal's ranks. Raises ConfigurationError where there can
    be no such place, BenchError when a process fails or a result is wrong.
    """
    plan = Plan(sizes=[size], rounds=rounds, contestants=libraries, environment=dict(environment or {}))
    progress = Progress(sys.stderr)
    with ExitStack() as stack:
        stack.callback(progress.end)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-replay-")))
        load = foreign_load()
        place = _open(place_text)
        stack.callback(place.close)
        program = (str(script.resolve()), RANK_OPTION)
        troupe = Troupe(place, unix_stage(folder), folder, program, arguments)
        stack.callback(troupe.stage.close)
        teams, pids = _start(troupe, plan)
        conductor = Conductor(_by_way(teams), place.watch(pids), plan.patience, troupe.alive)
        stack.callback(conductor.close)
        network = place.network(conductor.link_rate())
        results = conductor.measure(plan, size, progress)
        return Report(
            title=title,
            ranks=place.nodes,
            nodes=place.nodes,
            servers=place.servers,
            network=network,
            results=tuple(results),
            versions={library: next(iter(team[0].versions.values())) for library, team in teams.items()},
            missing={HOROVOD: _why_no_horovod()},
            facts={**machine_facts(), **place.facts(), "other load, before": f"{load:.2f} processors"},
        )
    raise AssertionError


def _start(troupe: Troupe, plan: Plan) -> tuple[dict[str, list[Player]], list[int]]:
    shoal = ShoalTeams(troupe, plan)
    teams = {library: shoal.start() if library == SHOAL else start_gloo(troupe) for library in plan.contestants}
    return teams, shoal.pids


def _by_way(teams: Mapping[str, list[Player]]) -> dict[str, list[Player]]:
    return {way: team for team in teams.values() for way in team[0].versions}


def take_part(text: str, ways: Ways) -> None:
    """This process as one rank: joins its library, and serves the conductor with what ``ways`` makes of it.

    ``ways``: from the joined library, its name and the script's arguments, contestants by their names in the report.
    """
    asked = json.loads(text)
    channel = connect(asked["control"])
    end_with_conductor(channel)
    joining = dict(asked["arguments"])
    if "store" in joining:
        joining |= _store(**joining.pop("store"))
    joined = join(asked["contestant"], joining)
    contestants = ways(joined, asked["contestant"], asked["task"])
    host = asked["host"] if isinstance(asked["host"], str) else asked["host"][joined.rank]
    try:
        Part(channel, contestants, host).serve(introduction(contestants, asked["token"], f"node {joined.rank}"))
    except ChannelClosed:
        sys.exit("the conductor is gone")
    joined.close()


def _store(host: str, port: int, rank: int, size: int) -> dict[str, Any]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return {"store": TCPStore(host, port, size, is_master=rank == 0), "rank": rank, "size": size}


def _open(text: str) -> Place:
    kind, _, shape = text.partition(" ")
    return LabPlace(LabShape.parse(shape)) if kind == "lab" else LocalPlace.parse(shape)


def _why_no_horovod() -> str:
    if find_spec(HOROVOD) is None:
        return "not installed"
    return "only a job that its own launcher has started can have it: shoal bench allreduce"


def times_table(report: Report) -> list[str]:
    """Of each way: the median, the fastest and slowest turn, and processor seconds of a turn."""
    lines = [f"{'':26}  {'median':>8}  {'fastest to slowest':>20}  {'CPU s':>6}"]
    for result in report.results:
        spread = f"{show_seconds(result.fastest)} to {show_seconds(result.slowest)}"
        cpu = result.cpu_per_gb * result.size / 1e9
        lines.append(f"{result.contestant:26}  {show_seconds(result.seconds):>8}  {spread:>20}  {cpu:6.3f}")
    return lines


def verdict(target: str, value: float, limit: float, *, at_least: bool) -> str:
    """``target: ... reached`` or ``NOT reached``, with the figure."""
    reached = value >= limit if at_least else value <= limit
    return f"target: {target}: {value:.3g}, {'reached' if reached else 'NOT reached'}"


def run_script(
    script: Path,
    heading: str,
    cases: Mapping[str, Callable[[bool], list[Report]]],
    show: Callable[[Report], list[str]],
) -> list[Report]:
    """The command line of a script: runs its cases (or, with --only, one), prints and writes .txt and .json into results/.

    ``cases``: by name, what measures one; told whether to be quick. ``show``: a report as lines. What is not run again is
    kept as it was. With --quick nothing is written. Returns all reports, none with --quick.
    """
    parser = argparse.ArgumentParser(description=heading)
    parser.add_argument("--quick", action="store_true", help="small, and writes no results")
    parser.add_argument("--only", choices=list(cases), help="this case alone; the others' results are kept")
    asked = parser.parse_args()
    stem = results_of(script)
    written = stem.with_suffix(".json")
    kept = json.loads(written.read_text(encoding="utf-8")) if written.exists() and not asked.quick else {}
    for name, case in cases.items():
        if asked.only in (None, name):
            reports = case(asked.quick)
            print("\n".join(_text(reports, show)), flush=True)
            kept[name] = [json.loads(report.to_json()) for report in reports]
    if asked.quick:
        return []
    written.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    # From what was written, in the order of the cases: the text is that of the data.
    known = [Report.from_json(json.dumps(content)) for name in cases for content in kept.get(name, [])]
    stem.with_suffix(".txt").write_text("\n".join([heading, "", *_text(known, show)]).rstrip() + "\n", encoding="utf-8")
    return known


def _text(reports: Sequence[Report], show: Callable[[Report], list[str]]) -> list[str]:
    return [line for report in reports for line in [*show(report), "", *notes(report)[1:], "", ""]]
