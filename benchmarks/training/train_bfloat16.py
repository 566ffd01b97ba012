"""What it brings, and what it costs in accuracy, that float32 gradients travel as bfloat16: a small GPT learns from the sources of
Python's standard library, with Shoal's own module.

Time: 4 nodes and 4 servers of a lab at 1 Gbit/s, in turns with float32 and without averaging. Accuracy: 4 ranks train the same model
from the same parameters on the same texts, of which none comes twice, so that a step's loss is that of texts that the model has not
seen. gloo's training differs from Shoal's in the order of sums alone, and says how far apart rounding of float32 puts two trainings.
AdamW, one thread a rank, 10.8 M parameters (43 MB of gradients).

    python benchmarks/training/train_bfloat16.py [--quick] [--part NAME]
        20 minutes, 6 GB of memory, root for the lab; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import statistics
from typing import Any

import click
from common import lined_up
from results import Part, in_parts
from training_ranks import ALONE, WIRE_FORMATS
from training_teams import GLOO, SMALL_GPT, SMALL_GPT_LAB, Steps, Teams

from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL, variant_name
from shoal.bench.places import LabPlace, LabShape, LocalPlace, Place
from shoal.bench.plan import Variant
from shoal.bench.sizes import show_seconds
from shoal.bench.watch import foreign_load

RANKS, TURNS, STEPS, FIRST_STEPS = 4, 15, 4, 3
LEARNS, AT_ONCE, LAST = 400, 20, 100
NARROW, FED_BACK = variant_name("bfloat16"), variant_name("feedback")
WORDS = {
    ALONE: "without averaging",
    GLOO: "float32, gloo",
    SHOAL: "float32",
    NARROW: "bfloat16",
    FED_BACK: "bfloat16, error feedback",
}


def measure(place: Place, names: list[str], turns: int, first: int, steps: int) -> dict[str, Any]:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors", "torch threads a rank": "1"}
    with Teams(place, {name: Variant() for name in WIRE_FORMATS}) as teams:
        done = teams.in_turns(names, SMALL_GPT, turns, first, steps)
        return {"facts": facts, **teams.ends(done, [name for name in names if name != ALONE])}


def time_of_steps(quick: bool) -> dict[str, Any]:
    place = LabPlace(LabShape.parse(SMALL_GPT_LAB))
    return measure(place, [ALONE, SHOAL, NARROW, FED_BACK], 2 if quick else TURNS, FIRST_STEPS, STEPS)


def accuracy(quick: bool) -> dict[str, Any]:
    turns = 1 if quick else LEARNS // AT_ONCE
    return measure(LocalPlace(RANKS), [GLOO, SHOAL, NARROW, FED_BACK], turns, 0, 4 if quick else AT_ONCE)


def tell_time(found: dict[str, Any]) -> list[str]:
    done = {name: Steps(**one) for name, one in found["steps"].items()}
    alone, whole = (statistics.median(done[name].seconds) for name in (ALONE, SHOAL))
    rows = [["", "step", "averaging", "to float32's", "middle half of the pairs"]]
    for name, steps in done.items():
        median = statistics.median(steps.seconds)
        ratios = [other / one for one, other in zip(steps.seconds, done[SHOAL].seconds, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        averages = name != ALONE
        rows.append(
            [
                WORDS[name],
                show_seconds(median),
                show_seconds(max(median - alone, 0.0)) if averages else "",
                f"{whole / median:.2f} × as fast" if averages else "",
                f"{low:.2f} to {high:.2f}" if averages else "",
            ]
        )
    count = len(done[SHOAL].seconds)
    return [
        f"{RANKS} nodes and {RANKS} servers at 1 Gbit/s, {found['bytes'] / 1e6:.1f} MB of gradients: medians of {count} turns of {STEPS} "
        "steps",
        "",
        *lined_up(rows),
    ]


def tell_accuracy(found: dict[str, Any]) -> list[str]:
    done = {name: Steps(**one) for name, one in found["steps"].items()}
    reference = done[SHOAL].losses
    last = min(LAST, len(reference))
    rows = [["", f"loss, mean of the last {last}", "to float32's", "a step's apart, median"]]
    for name, steps in done.items():
        mean, mean_of_reference = (statistics.fmean(losses[-last:]) for losses in (steps.losses, reference))
        apart = statistics.median(
            abs(one - other) / other for one, other in zip(steps.losses[-last:], reference[-last:], strict=True)
        )
        rows.append([WORDS[name], f"{mean:.4f}", f"{mean / mean_of_reference - 1:+.2%}", f"{apart:.2%}"])
    return [
        f"{RANKS} ranks, {len(reference)} steps; the loss (nats a byte) was {reference[0]:.3f} at first",
        "",
        *lined_up(rows),
    ]


PARTS = {"time": Part(time_of_steps, tell_time), "accuracy": Part(accuracy, tell_accuracy)}


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few steps, to try it: keeps nothing.")
@click.option("--part", type=click.Choice(list(PARTS)), help="Measures this alone, and keeps the other's results.")
def main(quick: bool, part: str | None) -> None:
    in_parts(__file__, "float32 gradients that travel as bfloat16: a small GPT", PARTS, part, quick)


if __name__ == "__main__":
    main()
