"""What the scripts that measure all-reduces in a lab share: parts that are measured one by one, and their results.

A script names its parts, each a lab and a plan of ``shoal bench``, and says in words what came out of them. Results lie
in benchmarks/results: NAME.json has every turn of every part, NAME.txt is for people, NAME.png is there if it draws anything.
Measuring one part keeps the results of the others. Only what hinders measuring is a failure, never a slow result.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
from results import FOLDER

from shoal.bench import (
    LabPlace,
    LabShape,
    LocalPlace,
    Plan,
    Progress,
    Report,
    Variant,
    notes,
    print_table,
    run,
    shown_name,
    variant_name,
)
from shoal.bench.places import Place
from shoal.bench.sizes import show_bytes, show_seconds
from shoal.bench.watch import foreign_load
from shoal.errors import ShoalError

FORMAT = 1
DOTS_PER_INCH = 150

# Results of --quick say nothing about speed, and are not for keeping.
_QUICK_FOLDER = Path(__file__).resolve().parents[2] / "build" / "benchmarks"

# A part begins when something else keeps fewer processors busy, or after so many seconds all the same.
_QUIET = 0.2
_PATIENCE = 45.0
_LOAD = "other load, before"

# Shoal's own ring, beside its servers: what a plan has, and its name among a report's contestants.
WITH_RING = {"ring": Variant(environment={"SHOAL_ALGORITHM": "ring"})}
RING = variant_name("ring")

# By the name of the part.
Runs = Mapping[str, Report]


@dataclass(frozen=True)
class Part:
    """What is measured in one run. ``place``: as ``shoal bench allreduce --lab`` takes it, or --local."""

    name: str
    place: str
    plan: Plan


@dataclass(frozen=True)
class Script:
    """``parts``: those of a quick trial, or the real ones. ``tell``: what came out, as lines, from the parts that were
    measured. ``draw``: a figure of matplotlib, or None while there is nothing to draw."""

    file: Path
    parts: Callable[[bool], Sequence[Part]]
    tell: Callable[[Runs], list[str]]
    draw: Callable[[Runs], Any] | None = None

    def main(self) -> None:
        """The command line of the script."""
        _command(self)()


def run_at(place: Place, plan: Plan) -> Report:
    """Runs the plan there, shows on standard error how far it is, and closes the place."""
    progress = Progress(sys.stderr)
    try:
        return run(plan, place, progress)
    finally:
        progress.end()
        place.close()


def grid(credits: Sequence[int], segments: Sequence[int]) -> dict[str, Variant]:
    """Shoal with each credit (bytes of a node that one server may have unanswered) and each segment that fits into it."""
    return {
        f"{show_bytes(segment)} of {show_bytes(credit)}": Variant(limits={"segment": segment, "credit": credit})
        for credit in credits
        for segment in segments
        if segment <= credit
    }


def verdict(target: str, reached: bool) -> str:
    """The line about one target."""
    return f"target: {target}: {'reached' if reached else 'NOT reached'}"


def beside_rivals(report: Report) -> list[list[str]]:
    """Rows for ``lined_up``: for each size our time, and each rival's with how many times as fast we are."""
    rivals = [name for name in report.contestants if name != "shoal"]
    rows = [["size", "Shoal", *(word for name in rivals for word in (shown_name(name), "Shoal is"))]]
    for size in report.sizes:
        cells = [show_bytes(size), show_seconds(report.result("shoal", size).seconds)]
        for name in rivals:
            cells += [show_seconds(report.result(name, size).seconds), f"{report.speedup(name, size):.2f} ×"]
        rows.append(cells)
    return rows


def lined_up(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines: the first row is the head, the first column is on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for cells in rows:
        first, *others = zip(cells, widths, strict=True)
        words = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]
        lines.append("  ".join(words).rstrip())
    return lines


def _command(script: Script) -> click.Command:
    names = [part.name for part in script.parts(False)]
    about = (sys.modules["__main__"].__doc__ or "").split("\n\n")[0]

    @click.command(help=about)
    @click.option("--quick", is_flag=True, help=f"Small sizes and few turns, to try it: into {_QUICK_FOLDER.name}/.")
    @click.option("--part", "wanted", multiple=True, metavar="NAME", help=f"Measures this alone: {'; '.join(names)}.")
    @click.option("--show", is_flag=True, help="Measures nothing: text and figure from the results that there are.")
    @click.option(
        "--out", type=click.Path(file_okay=False, path_type=Path), help=f"Folder of results.  [default: {FOLDER.name}/]"
    )
    def command(quick: bool, wanted: Sequence[str], show: bool, out: Path | None) -> None:
        folder = out or (_QUICK_FOLDER if quick else FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _run(script, folder / script.file.stem, [] if show else _chosen(script.parts(quick), wanted), quick)
        except ShoalError as error:
            raise click.ClickException(str(error)) from None

    return command


def _chosen(parts: Sequence[Part], wanted: Sequence[str]) -> list[Part]:
    unknown = set(wanted) - {part.name for part in parts}
    if unknown:
        raise click.ClickException(f"no part is called {unknown.pop()!r}: {'; '.join(part.name for part in parts)}")
    return [part for part in parts if not wanted or part.name in wanted]


def _run(script: Script, stem: Path, parts: Sequence[Part], quick: bool) -> None:
    results = stem.with_suffix(".json")
    order = [part.name for part in script.parts(quick)]
    runs = _read(results)
    for part in parts:
        print(f"{part.name}: {part.place}", file=sys.stderr)
        _await_quiet(0.0 if quick else _PATIENCE)
        runs[part.name] = _measure(part)
        runs = {name: runs[name] for name in order if name in runs}
        # After each part: what comes next may fail.
        _write(results, runs)
    _tell(script, runs, stem)


def _await_quiet(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (load := foreign_load()) > _QUIET and time.monotonic() < deadline:
        print(f"something else keeps {load:.2f} processors busy: waiting", file=sys.stderr)
        time.sleep(2)


def _measure(part: Part) -> Report:
    """Raises ConfigurationError where no lab can be made: it needs root."""
    local = part.place.startswith("n=")
    return run_at(LocalPlace.parse(part.place) if local else LabPlace(LabShape.parse(part.place)), part.plan)


def _tell(script: Script, runs: Runs, stem: Path) -> None:
    if not runs:
        raise click.ClickException(f"{stem.with_suffix('.json')} has no results yet")
    with stem.with_suffix(".txt").open("w") as file:
        _describe(script, runs, file)
    print(stem.with_suffix(".txt").read_text(), end="")
    figure = script.draw(runs) if script.draw is not None else None
    if figure is not None:
        figure.savefig(stem.with_suffix(".png"), dpi=DOTS_PER_INCH)


def _describe(script: Script, runs: Runs, file: TextIO) -> None:
    """First what came out, then each part's table with what is true of it alone, then what is true of all."""
    said = {name: notes(report) for name, report in runs.items()}
    common = [line for line in next(iter(said.values())) if all(line in lines for lines in said.values())]
    for line in [*script.tell(runs), *_disturbed(runs)]:
        print(line, file=file)
    for name, report in runs.items():
        print(f"\n{name}\n", file=file)
        print_table(report, file)
        print(file=file)
        for line in said[name]:
            if line not in common:
                print(line, file=file)
    print("\nin all of these:", file=file)
    for line in common:
        print(line, file=file)


def _disturbed(runs: Runs) -> list[str]:
    """What not to believe."""
    loads = {name: float(report.facts[_LOAD].split()[0]) for name, report in runs.items() if _LOAD in report.facts}
    return [
        f"not a quiet machine: {name}, where something else kept {load:.2f} processors busy before it began"
        for name, load in loads.items()
        if load > _QUIET
    ]


def _read(path: Path) -> dict[str, Report]:
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content.get("format") != FORMAT:
        raise click.ClickException(f"{path} is not of format {FORMAT}: remove it and measure again")
    return {name: Report.from_json(json.dumps(report)) for name, report in content["runs"].items()}


def _write(path: Path, runs: Runs) -> None:
    """One line a part."""
    lines = [f"{json.dumps(name)}: {json.dumps(json.loads(report.to_json()))}" for name, report in runs.items()]
    path.write_text(f'{{"format": {FORMAT}, "runs": {{\n' + ",\n".join(lines) + "\n}}\n")
