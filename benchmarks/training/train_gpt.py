"""Training a small GPT on the sources of Python's standard library: PyTorch's DistributedDataParallel on gloo and on the backend "shoal",
and Shoal's own module, which take turns; 4 ranks on one machine, and 4 nodes and 4 servers of a lab at 1 Gbit/s.

A fourth team trains without averaging: what a step takes longer than that one's is averaging. The losses of all three have to agree:
they differ by rounding only. AdamW, one thread a rank, 10.8 M parameters (43 MB of gradients).

    python benchmarks/training/train_gpt.py [--quick] [--part NAME]
        6 minutes, 6 GB of memory, root for the lab; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import statistics
from collections.abc import Callable
from typing import Any

import click
from common import lined_up, verdict
from results import Part, in_parts
from training_ranks import ALONE
from training_teams import C10D, GLOO, LENGTH, SEQUENCES, SMALL_GPT, SMALL_GPT_LAB, Steps, Teams

from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL
from shoal.bench.places import LabPlace, LabShape, LocalPlace, Place
from shoal.bench.sizes import show_seconds
from shoal.bench.watch import foreign_load

RANKS, TURNS, STEPS, FIRST_STEPS = 4, 9, 4, 3
TEAMS = {
    ALONE: "without averaging",
    GLOO: "PyTorch's module, gloo",
    C10D: "PyTorch's module, shoal",
    SHOAL: "Shoal's module",
}
ALIKE = 1e-3
PLACES: dict[str, tuple[str, Callable[[], Place]]] = {
    "machine": (f"{RANKS} ranks on one machine", lambda: LocalPlace(RANKS, one_machine=True)),
    "lab": (f"{RANKS} nodes and {RANKS} servers at 1 Gbit/s", lambda: LabPlace(LabShape.parse(SMALL_GPT_LAB))),
}


def measure(place: Place, turns: int, steps: int) -> dict[str, Any]:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors", "torch threads a rank": "1"}
    with Teams(place) as teams:
        done = teams.in_turns(list(TEAMS), SMALL_GPT, turns, FIRST_STEPS, steps)
        averaging = [name for name in TEAMS if name != ALONE]
        versions = {TEAMS[name]: teams.versions[name] for name in averaging}
        return {"facts": facts | versions, **teams.ends(done, averaging)}


def tell(found: dict[str, Any]) -> list[str]:
    done = {name: Steps(**one) for name, one in found["steps"].items()}
    count, steps = len(done[SHOAL].seconds), len(done[SHOAL].losses)
    reference = done[GLOO].losses
    apart = {name: _apart(done[name].losses, reference) for name in (C10D, SHOAL)}
    same = [name for name in (GLOO, C10D, SHOAL) if len(found["digests"][name]) == 1]
    return [
        f"{found['bytes'] / 1e6:.1f} MB of gradients, {SEQUENCES} × {LENGTH} characters a rank and step: medians of {count} turns of {STEPS} steps",
        "",
        *lined_up(table(done)),
        "",
        *(
            verdict(f"{TEAMS[name]}: gloo's losses in {steps} steps, at most {one:.1e} of the loss apart", one < ALIKE)
            for name, one in apart.items()
        ),
        verdict("all ranks end with the same bits of all parameters", len(same) == 3),
        f"loss: {reference[0]:.3f} at first, {statistics.fmean(reference[-STEPS:]):.3f} in the last turn",
    ]


def table(done: dict[str, Steps]) -> list[list[str]]:
    rows = [["", "step", "fastest", "slowest", "averaging", "tokens/s", "to gloo's", "CPU s, all ranks"]]
    alone, gloo = (statistics.median(done[name].seconds) for name in (ALONE, GLOO))
    for name, words in TEAMS.items():
        seconds = done[name].seconds
        median = statistics.median(seconds)
        times = map(show_seconds, (median, min(seconds), max(seconds)))
        added = "" if name == ALONE else show_seconds(max(median - alone, 0.0))
        tokens = f"{RANKS * SEQUENCES * LENGTH / median:.0f}"
        ratio = "" if name == ALONE else f"{gloo / median:.2f} ×"
        rows.append([words, *times, added, tokens, ratio, f"{statistics.median(done[name].cpu):.2f}"])
    return rows


def _apart(losses: list[float], reference: list[float]) -> float:
    return max(abs(one - other) / other for one, other in zip(losses, reference, strict=True))


def of_place(words: str, place: Callable[[], Place]) -> Part:
    return Part(
        lambda quick: measure(place(), 2, 2) if quick else measure(place(), TURNS, STEPS),
        lambda found: [words, *tell(found)],
    )


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few turns, to try it: keeps nothing.")
@click.option("--part", type=click.Choice(list(PLACES)), help="Measures this alone, and keeps the other's results.")
def main(quick: bool, part: str | None) -> None:
    in_parts(__file__, "A small GPT, in turns", {name: of_place(*one) for name, one in PLACES.items()}, part, quick)


if __name__ == "__main__":
    main()
