"""Four figures of the paper on PyTorch's DistributedDataParallel (Li et al., 2020), answered on this machine: 4 ranks that train a small GPT.

- Fig. 6, where the time of a step goes: forward, backward, averaging, optimizer; averaging within the backward pass, and after it
- Fig. 7, the step by the size of a bucket (Shoal: of a fusion buffer)
- Fig. 10, the step where only each second, fourth, eighth backward pass averages
- Fig. 12, the step where several process groups take turns with the buckets (PyTorch's module on both backends)

The contestants: PyTorch's module on gloo and on the backend "shoal", and Shoal's own module. They take turns; medians. The paper had
a GPU for each rank; here 2 ranks share a core, so averaging within a backward pass saves waiting, not the processor's time.

    python benchmarks/papers/ddp_fig6_to_fig12_step.py [--quick]
        6 minutes, 6 GB of memory; results in benchmarks/results (.txt, .json, .png)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import click
from common import DOTS_PER_INCH, lined_up
from results import results_of
from training_ranks import Task
from training_teams import C10D, GLOO, Steps, Teams

from shoal.bench.channel import Message
from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL
from shoal.bench.places import LocalPlace
from shoal.bench.sizes import show_seconds
from shoal.bench.watch import foreign_load

RANKS, TURNS, STEPS = 4, 5, 4
TASK = Task("gpt", sequences=1, length=32)
TEAMS = {GLOO: "PyTorch's module, gloo", C10D: "PyTorch's module, shoal", SHOAL: "Shoal's module"}
COLOURS = {GLOO: "#d9822b", C10D: "#7fb2e5", SHOAL: "#1f6fb4"}
PARTS = ("forward", "backward", "averaging", "optimizer")
WITHIN, AFTER = "within", "after"
# MB of 2^20 bytes; the model has 41.
BUCKETS = (0.25, 1.0, 5.0, 25.0, 50.0)
SKIPPED = (0, 1, 3, 7)
GROUPS = (1, 3, 5)

# By the team: by what was varied: seconds.
Found = dict[str, dict[str, Any]]


def measure_parts(teams: Teams, turns: int) -> Found:
    found: Found = {name: {} for name in TEAMS}
    took: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name in TEAMS:
        teams.start(name, TASK)
    ways = [(name, way) for name in TEAMS for way in (WITHIN, AFTER) if (name, way) != (SHOAL, AFTER)]
    for turn in range(-1, turns):
        for name, way in ways:
            answers = teams.ask(name, {"do": "parts", "count": STEPS, "afterwards": way == AFTER})
            if turn >= 0:
                took.setdefault((name, way), []).append(_mean_parts(answers))
    for (name, way), turned in took.items():
        found[name][way] = {part: statistics.median(one[part] for one in turned) for part in PARTS}
    return found


def measure_steps(teams: Teams, tasks: Iterable[tuple[Any, Task, int]], names: Iterable[str], turns: int) -> Found:
    """``tasks``: what it is called, the task, and how many backward passes of a step do not average."""
    found: Found = {name: {} for name in names}
    for called, task, skipped in tasks:
        done = {name: Steps() for name in found}
        for name in found:
            teams.start(name, task)
        for turn in range(-1, turns):
            for name in found:
                command = {"do": "steps", "count": max(STEPS, skipped + 1), "skipped": skipped}
                done[name].take(teams.ask(name, command), counts=turn >= 0)
        for name, one in done.items():
            found[name][str(called)] = statistics.median(one.seconds)
    return found


def _mean_parts(answers: list[Message]) -> dict[str, float]:
    """Of a step, over its ranks and the steps of a turn."""
    return {part: statistics.fmean(second for one in answers for second in one["parts"][part]) for part in PARTS}


def measure(turns: int) -> dict[str, Any]:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors", "torch threads a rank": "1"}
    with Teams(LocalPlace(RANKS, one_machine=True)) as teams:
        parts = measure_parts(teams, turns)
        buckets = [(size, replace(TASK, buffer_mb=size), 0) for size in BUCKETS]
        skipped = [(count + 1, TASK, count) for count in SKIPPED]
        groups = [(count, replace(TASK, round_robin=count), 0) for count in GROUPS]
        return {
            "parts": parts,
            "buckets": measure_steps(teams, buckets, TEAMS, turns),
            "skipped": measure_steps(teams, skipped, TEAMS, turns),
            "groups": measure_steps(teams, groups, (GLOO, C10D), turns),
            "facts": facts | {TEAMS[name]: version for name, version in teams.versions.items()},
        }


def tell(found: dict[str, Any]) -> list[str]:
    return [
        f"A step of a GPT with 10.8 M parameters on {RANKS} ranks of one machine, {TASK.sequences} × {TASK.length} characters a rank",
        "",
        "where its time goes (DDP's Fig. 6)",
        *lined_up(_parts_table(found["parts"])),
        "",
        "by the size of a bucket, MiB (Fig. 7)",
        *lined_up(_table(found["buckets"])),
        "",
        "by how many backward passes share one average (Fig. 10)",
        *lined_up(_table(found["skipped"])),
        "",
        "by how many process groups take turns (Fig. 12)",
        *lined_up(_table(found["groups"])),
        "",
        *(f"{name}: {fact}" for name, fact in found["facts"].items()),
    ]


def _parts_table(parts: Found) -> list[list[str]]:
    rows = [["", "averaging", *PARTS, "step"]]
    for name, ways in parts.items():
        for way, seconds in ways.items():
            words = {WITHIN: "within the backward pass", AFTER: "after it"}[way]
            shown = ["" if way == WITHIN and part == "averaging" else show_seconds(seconds[part]) for part in PARTS]
            rows.append([TEAMS[name], words, *shown, show_seconds(sum(seconds.values()))])
    return rows


def _table(found: Found) -> list[list[str]]:
    rows = [["", *next(iter(found.values()))]]
    return rows + [[TEAMS[name], *map(show_seconds, seconds.values())] for name, seconds in found.items()]


def draw(found: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    _draw_parts(axes[0][0], found["parts"])
    titles = {
        "buckets": ("Fig. 7: size of a bucket", "MiB"),
        "skipped": ("Fig. 10: skipped averages", "backward passes to an average"),
        "groups": ("Fig. 12: round robin", "process groups"),
    }
    for place, (key, (title, words)) in zip((axes[0][1], axes[1][0], axes[1][1]), titles.items(), strict=True):
        for name, seconds in found[key].items():
            milliseconds = [1e3 * one for one in seconds.values()]
            place.plot(list(seconds), milliseconds, marker="o", color=COLOURS[name], label=TEAMS[name])
        place.set(title=title, xlabel=words, ylabel="step, ms", ylim=(0, None))
        place.legend()
    return figure


def _draw_parts(place: Any, parts: Found) -> None:
    bars = [(TEAMS[name], way, seconds) for name, ways in parts.items() for way, seconds in ways.items()]
    names = [f"{name},\naveraging {way}" for name, way, _ in bars]
    left = [0.0] * len(bars)
    for part, shade in zip(PARTS, ("#9aa5b1", "#52606d", "#d64545", "#cbd2d9"), strict=True):
        widths = [1e3 * seconds[part] for _, _, seconds in bars]
        place.barh(names, widths, left=left, color=shade, label=part)
        left = [one + width for one, width in zip(left, widths, strict=True)]
    place.invert_yaxis()
    place.set(title="Fig. 6: where a step's time goes", xlabel="ms")
    place.legend(fontsize="small")


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    found = measure(1 if quick else TURNS)
    lines = tell(found)
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        stem.with_suffix(".json").write_text(json.dumps(found) + "\n")
        draw(found).savefig(stem.with_suffix(".png"), dpi=DOTS_PER_INCH)


if __name__ == "__main__":
    main()
