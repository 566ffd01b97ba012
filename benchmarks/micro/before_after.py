"""Shoal as it is, beside Shoal as it was at an earlier commit: both take turns in one run, on the same machine and links.

What c10d.py, inside_node.py, nodes.py, small_sizes.py, any_servers.py, server_core.py and train_gpt.py measure of Shoal, without its rivals.
Each row is one kind of all-reduce or of training step, or what operations cost a server. A pair is some rounds of
one turn each, and its ratio the middle one of the rounds' ratios, time now by time before. The middle half of a row's
ratios has to lie within 5 %, or the row shows nothing and is run again. With more ranks than processors a small
operation has one of several speeds from one start of all processes to the next, which differ by a quarter, and a turn
has one of two. So such a pair is of nine starts, and its ratio the geometric mean of theirs; a start's is the one of its
rounds but for the outermost tenths. Target: a median ratio of at most 1.03 in every row.

Who starts first has slower memory: the same step of train_gpt.py takes 2 % longer, in its optimizer too. So half of a pair is measured with
this Shoal started first and half with the earlier one, and the pair's ratio is the geometric mean of both. Pairs are of several such starts of
all processes, since where memory happens to lie makes up to 3 % from one to the next. Ranks are bound to processors by turns, as mpirun does:
where the scheduler happens to put the threads of a turn changes the time of a small operation by half, for seconds.

    sudo python benchmarks/micro/before_after.py [--quick | --again] [--part NAME] COMMIT

Builds the commit into build/before. Needs root for the lab, taskset, one to three hours on 2 cores and nothing else at work; results in benchmarks/results
(.txt, .json).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import io
import json
import math
import os
import shutil
import statistics
import subprocess
import tarfile
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
from common import lined_up, run_at, verdict
from results import results_of
from training_teams import SMALL_GPT, SMALL_GPT_LAB, Teams

from shoal.bench import LabPlace, LabShape, LocalPlace, Plan, Variant, variant_name
from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL
from shoal.bench.places import Place
from shoal.bench.places.lab import LabProcess
from shoal.bench.places.local import LocalProcess
from shoal.bench.sizes import show_bytes
from shoal.bench.watch import foreign_load

KIB, MIB = 1024, 1024**2
SERVED = 16 * MIB  # more than the caches hold
STARTS, PAIRS_OF_A_START = 4, 4  # a start: of all processes, twice
AT_MOST = 1.03
MIDDLE_HALF = 0.05
# Short and many: the machine's mood, which changes within seconds, is then the same for two turns beside each other.
TURNS, TURN_SECONDS = 24, 0.01
FEW_TURNS = 8  # where an operation takes as long as the link takes for it
PAIRS_WHEN_UNCLEAR, STARTS_OF_UNCLEAR_PAIR = 16, 9
STEPS, FIRST_STEPS = 1, 3
BEFORE = "before"
ROOT = Path(__file__).resolve().parents[2]

PLAIN, SHARED, C10D = "", "shared", "c10d"
KINDS = {PLAIN: Variant(), SHARED: Variant(shared=True), C10D: Variant(c10d=True)}


@dataclass(frozen=True)
class Row:
    """``ratios``: of the pairs, time now by time before."""

    name: str
    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def middle_half(self) -> tuple[float, float]:
        first, _, third = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return first, third

    @property
    def shows_something(self) -> bool:
        first, third = self.middle_half
        return third - first <= MIDDLE_HALF


def _bound(command: Sequence[str], environment: Mapping[str, str]) -> Sequence[str]:
    """Runs a rank on one processor; anything else anywhere."""
    if "RANK" not in environment:
        return command
    processors = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    if taskset is None:
        raise click.ClickException("there is no taskset: install util-linux")
    return [taskset, "--cpu-list", str(processors[int(environment["RANK"]) % len(processors)]), *command]


class _BoundLocalPlace(LocalPlace):
    def start(
        self, host: int, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> LocalProcess:
        return super().start(host, name, _bound(command, environment), environment, output)


class _BoundLabPlace(LabPlace):
    def start(
        self, host: int, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> LabProcess:
        return super().start(host, name, _bound(command, environment), environment, output)


def _ratios(now: Sequence[float], before: Sequence[float], turns_of_a_pair: int, unclear: bool) -> tuple[float, ...]:
    """Of pairs. ``now``, ``before``: seconds by turns. ``unclear``: the row's medians have shown nothing."""
    of_turns = [a / b for a, b in zip(now, before, strict=True)]
    one_of = _trimmed_mean if unclear else statistics.median
    return tuple(one_of(of_turns[at : at + turns_of_a_pair]) for at in range(0, len(of_turns), turns_of_a_pair))


def _trimmed_mean(ratios: Sequence[float]) -> float:
    outermost = len(ratios) // 10
    return statistics.geometric_mean(sorted(ratios)[outermost : len(ratios) - outermost])


@dataclass(frozen=True)
class Operations:
    """All-reduces at a place. ``kinds``: of Shoal's arrays, of ``KINDS``. ``turns``: of a pair."""

    place: Callable[[], Place]
    kinds: Sequence[str]
    sizes: Sequence[int]
    turns: int = TURNS

    def rows(
        self, python: str, pairs: int, turns: int, wanted: Sequence[str] | None, earlier_first: bool = False
    ) -> list[Row]:
        named = {self._name(kind, size): (kind, size) for size in self.sizes for kind in self.kinds}
        chosen = {name: one for name, one in named.items() if wanted is None or name in wanted}
        kinds = [kind for kind in self.kinds if any(kind == one for one, _ in chosen.values())]
        variants = {kind: KINDS[kind] for kind in kinds if kind}
        variants |= {f"{kind} {BEFORE}".strip(): replace(KINDS[kind], python=python) for kind in kinds}
        plan = Plan(
            sizes=[size for size in self.sizes if any(size == one for _, one in chosen.values())],
            rounds=pairs * turns,
            contestants=(SHOAL,),
            variants=dict(reversed(variants.items())) if earlier_first else variants,
            variants_first=earlier_first,
            turn_seconds=TURN_SECONDS,
        )
        report = run_at(self.place(), plan)
        rows = []
        for name, (kind, size) in chosen.items():
            now, then = (
                [turn.seconds for turn in report.result(_team(variant), size).turns]
                for variant in (kind, f"{kind} {BEFORE}".strip())
            )
            rows.append(Row(name, _ratios(now, then, turns, wanted is not None)))
        return rows

    @staticmethod
    def _name(kind: str, size: int) -> str:
        return f"{show_bytes(size)} {kind}".strip()


@dataclass(frozen=True)
class Training:
    """Steps of train_gpt.py's network, by Shoal's module and by PyTorch's on the backend "shoal"."""

    place: Callable[[], Place]
    turns: int = FEW_TURNS

    def rows(
        self, python: str, pairs: int, turns: int, wanted: Sequence[str] | None, earlier_first: bool = False
    ) -> list[Row]:
        named = {"Shoal's module": PLAIN, "PyTorch's module": C10D}
        chosen = {name: kind for name, kind in named.items() if wanted is None or name in wanted}
        variants = {BEFORE: Variant(python=python), f"{C10D} {BEFORE}": Variant(c10d=True, python=python)}
        teams = {name: (_team(kind), _team(f"{kind} {BEFORE}".strip())) for name, kind in chosen.items()}
        with Teams(self.place(), variants) as stage:
            everyone = [team for pair in teams.values() for team in (reversed(pair) if earlier_first else pair)]
            done = stage.in_turns(everyone, SMALL_GPT, pairs * turns, FIRST_STEPS, STEPS)
        return [
            Row(name, _ratios(done[now].seconds, done[then].seconds, turns, wanted is not None))
            for name, (now, then) in teams.items()
        ]


@dataclass(frozen=True)
class ServerCost:
    """Processor time of a dedicated server for operations whose bytes come in frames of these sizes."""

    frames: Sequence[int]
    turns: int = TURNS

    def rows(
        self, python: str, pairs: int, turns: int, wanted: Sequence[str] | None, earlier_first: bool = False
    ) -> list[Row]:
        named = {f"frames of {show_bytes(frame)}": frame for frame in self.frames}
        chosen = {name: frame for name, frame in named.items() if wanted is None or name in wanted}
        rows = []
        for name, frame in chosen.items():
            plan = Plan(
                sizes=[SERVED],
                rounds=pairs * turns,
                contestants=(SHOAL,),
                variants={BEFORE: Variant(python=python)},
                variants_first=earlier_first,
                limits={"segment": frame, "credit": frame},
                environment={"SHOAL_COLOCATED": "never"},
                turn_seconds=TURN_SECONDS,
            )
            report = run_at(LocalPlace(4, servers=1), plan)
            now, then = (
                [turn.server_cpu or math.nan for turn in report.result(_team(variant), SERVED).turns]
                for variant in (PLAIN, BEFORE)
            )
            rows.append(Row(name, _ratios(now, then, turns, wanted is not None)))
        return rows


def _team(variant: str) -> str:
    return variant_name(variant) if variant else SHOAL


def _machine(ranks: int, one_machine: bool) -> Callable[[], Place]:
    return lambda: _BoundLocalPlace(ranks, one_machine=one_machine)


def _lab(shape: str) -> Callable[[], Place]:
    return lambda: _BoundLabPlace(LabShape.parse(shape))


_SMALL_TO_LARGE = (KIB, 64 * KIB, MIB, 25 * MIB)
_SMALL = (KIB, 4 * KIB, 64 * KIB, MIB)
PARTS: Mapping[str, Operations | Training | ServerCost] = {
    "c10d, 2 ranks on one machine": Operations(_machine(2, True), (PLAIN, C10D), _SMALL_TO_LARGE),
    "c10d, 2 nodes": Operations(_machine(2, False), (PLAIN, C10D), _SMALL_TO_LARGE),
    "c10d, 4 ranks on one machine": Operations(_machine(4, True), (PLAIN, C10D), _SMALL_TO_LARGE),
    "inside_node, 4 ranks": Operations(_machine(4, True), (PLAIN, SHARED), (4 * KIB, MIB, 100_000_000)),
    "inside_node, 8 ranks": Operations(_machine(8, True), (PLAIN, SHARED), (4 * KIB, MIB, 100_000_000)),
    "nodes": Operations(
        _lab("nodes=2,ranks=4,servers=2,rate=1gbit"), (PLAIN, SHARED), (25_000_000, 100_000_000), FEW_TURNS
    ),
    "small_sizes, k = 0": Operations(_lab("nodes=8"), (PLAIN,), _SMALL),
    "small_sizes, k = 2": Operations(_lab("nodes=8,servers=2"), (PLAIN,), _SMALL),
    "any_servers, k = 0": Operations(_lab("nodes=8,rate=400mbit"), (PLAIN,), (64 * KIB, 25_000_000), FEW_TURNS),
    "any_servers, k = 1": Operations(_lab("nodes=8,servers=1,rate=400mbit"), (PLAIN,), (25_000_000,), FEW_TURNS),
    "any_servers, k = 4": Operations(_lab("nodes=8,servers=4,rate=400mbit"), (PLAIN,), (25_000_000,), FEW_TURNS),
    "any_servers, k = 8": Operations(_lab("nodes=8,servers=8,rate=400mbit"), (PLAIN,), (25_000_000,), FEW_TURNS),
    "server_core": ServerCost((16 * KIB, 64 * KIB, 256 * KIB)),
    "train_gpt, one machine": Training(_machine(4, True)),
    "train_gpt, lab": Training(_lab(SMALL_GPT_LAB)),
}


def earlier_build(commit: str) -> str:
    """The interpreter of an environment that has Shoal as it was, and everything else as this one has it."""
    full = _output("git", "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    folder = ROOT / "build" / BEFORE / full
    python = folder / "venv" / "bin" / "python"
    if not (folder / "built").exists():
        source = folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(_output("git", "archive", full))) as archive:
            archive.extractall(source)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        wheels = folder / "wheel"
        subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source], check=True)
        venv.create(folder / "venv", with_pip=False)
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        (wheel,) = wheels.glob("*.whl")
        subprocess.run([*pip, "install", "--no-deps", "--target", packages, wheel], check=True)
        (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        (folder / "built").touch()
    said = subprocess.run([python, "-c", "import shoal; print(shoal.__file__)"], check=True, stdout=subprocess.PIPE)
    if not Path(said.stdout.decode().strip()).is_relative_to(folder):
        raise click.ClickException(f"the earlier Shoal is not what {python} imports")
    return str(python)


def _output(*command: str) -> bytes:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def measure(part: Operations | Training | ServerCost, python: str, quick: bool) -> list[Row]:
    if quick:
        return _in_starts(1, part, python, 3, part.turns, None)
    return clearer(part, python, _in_starts(STARTS, part, python, PAIRS_OF_A_START, part.turns, None))


def clearer(part: Operations | Training | ServerCost, python: str, rows: list[Row]) -> list[Row]:
    """The rows that show nothing are run again."""
    unclear = [row.name for row in rows if not row.shows_something]
    return run_again(part, python, rows, unclear) if unclear else rows


def run_again(
    part: Operations | Training | ServerCost, python: str, rows: list[Row], unclear: Sequence[str]
) -> list[Row]:
    for row in rows:
        print(row.name, *(f"{ratio:.3f}" for ratio in row.ratios), file=sys.stderr)
    print(f"once more, in pairs of {STARTS_OF_UNCLEAR_PAIR} starts: {', '.join(unclear)}", file=sys.stderr)
    again = _in_starts(PAIRS_WHEN_UNCLEAR * STARTS_OF_UNCLEAR_PAIR, part, python, 1, part.turns, unclear)
    return [{row.name: _of_several_starts(row) for row in again}.get(row.name, row) for row in rows]


def _of_several_starts(row: Row) -> Row:
    """``row``: has a ratio for every start."""
    firsts = range(0, len(row.ratios), STARTS_OF_UNCLEAR_PAIR)
    pairs = (row.ratios[first : first + STARTS_OF_UNCLEAR_PAIR] for first in firsts)
    return replace(row, ratios=tuple(statistics.geometric_mean(pair) for pair in pairs))


def _in_starts(
    starts: int,
    part: Operations | Training | ServerCost,
    python: str,
    pairs: int,
    turns: int,
    wanted: Sequence[str] | None,
) -> list[Row]:
    """So many starts, each with so many pairs of so many turns, half of them with either Shoal started first."""
    ratios: dict[str, list[float]] = {}
    for _ in range(starts):
        in_orders = [part.rows(python, pairs, turns // 2, wanted, earlier_first) for earlier_first in (False, True)]
        for in_one, in_other in zip(*in_orders, strict=True):
            halves = zip(in_one.ratios, in_other.ratios, strict=True)
            ratios.setdefault(in_one.name, []).extend(math.sqrt(one * other) for one, other in halves)
    return [Row(name, tuple(of_row)) for name, of_row in ratios.items()]


def tell(commit: str, found: Mapping[str, Any]) -> list[str]:
    lines = [f"Time now by the time of commit {commit}, pair by pair", ""]
    table = [["", "pairs", "median", "middle half", f"at most {AT_MOST:g}"]]
    for part, entry in found.items():
        for row in (Row(**one) for one in entry["rows"]):
            first, third = row.middle_half
            reached = "reached" if row.median <= AT_MOST else "NOT reached"
            said = reached if row.shows_something else "shows nothing"
            cells = [str(len(row.ratios)), f"{row.median:.3f}", f"{first:.3f} to {third:.3f}", said]
            table.append([f"{part}, {row.name}", *cells])
    lines += lined_up(table)
    rows = [Row(**one) for entry in found.values() for one in entry["rows"]]
    clear = [row for row in rows if row.shows_something]
    lines += ["", verdict(f"all {len(rows)} rows show something, {len(clear)} do", len(clear) == len(rows))]
    if clear:
        worst = max(row.median for row in clear)
        lines.append(verdict(f"at most {AT_MOST:g} in each of these, largest {worst:.3f}", worst <= AT_MOST))
    for part, entry in found.items():
        lines += ["", part, *(f"{fact}: {value}" for fact, value in entry["facts"].items())]
    return lines


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("commit")
@click.option("--quick", is_flag=True, help="Few pairs, to try it: keeps nothing.")
@click.option("--part", "wanted", multiple=True, type=click.Choice(list(PARTS)), help="This alone; keeps the others.")
@click.option(
    "--again", is_flag=True, help="Of what was kept, the rows that show nothing or too much; keeps the others."
)
def main(commit: str, quick: bool, wanted: Sequence[str], again: bool) -> None:
    python = earlier_build(commit)
    stem = results_of(__file__)
    kept = stem.with_suffix(".json")
    found: dict[str, Any] = json.loads(kept.read_text()) if (wanted or again) and not quick and kept.exists() else {}
    for name in wanted or PARTS:
        rows = [Row(**row) for row in found[name]["rows"]] if again and name in found else []
        unclear = [row.name for row in rows if not row.shows_something or row.median > AT_MOST]
        if again and not unclear:
            print(f"{name}: {'every row has reached its target' if rows else 'was not kept'}", file=sys.stderr)
            continue
        print(name, file=sys.stderr)
        facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors"}
        if again:
            rows = run_again(PARTS[name], python, rows, unclear)
            facts = found[name]["facts"] | {"run again": facts["date"]}
        else:
            rows = measure(PARTS[name], python, quick)
        found[name] = {"facts": facts, "rows": [asdict(row) for row in rows]}
        found = {one: found[one] for one in PARTS if one in found}
        if not quick:
            # After each part: what comes next may fail.
            kept.write_text(json.dumps(found) + "\n")
            stem.with_suffix(".txt").write_text("\n".join(tell(commit, found)) + "\n")
    print("\n".join(tell(commit, found)))


if __name__ == "__main__":
    main()
