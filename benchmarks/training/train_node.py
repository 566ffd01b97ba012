"""Training on one machine: steps of a model of 100 MB of parameters on 4 ranks, PyTorch's DistributedDataParallel with gloo and Shoal's.

Three teams of 4 processes take turns, one of them without any averaging: what a library's step takes longer than that one's is its
averaging. Targets: where gloo's averaging is at least 40 % of its step, a step with Shoal is at least 1.4 times as fast; the same
losses; and of two runs of Shoal, the same bits. A transformer of 8 layers of width 512 on short texts, SGD with momentum, one thread
a rank; PyTorch's gradients are views into its buckets (gradient_as_bucket_view), which spares it a copy.

    python benchmarks/training/train_node.py [--quick]
        2 minutes, 8 GB of memory; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import statistics
from typing import Any

import click
from common import lined_up, verdict
from results import results_of
from training_ranks import ALONE, Task
from training_teams import AGAIN, GLOO, Steps, Teams

from shoal.bench import shown_name
from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL
from shoal.bench.places import LocalPlace
from shoal.bench.sizes import show_seconds
from shoal.bench.watch import foreign_load

RANKS, TURNS, STEPS, FIRST_STEPS = 4, 9, 5, 3
# Of each rank in a step.
SEQUENCES, LENGTH = 1, 16
TASK = Task("transformer", SEQUENCES, LENGTH, momentum=0.9)
TEAMS = {ALONE: "without averaging", GLOO: "PyTorch with gloo", SHOAL: "Shoal"}
LEAST_SHARE, FASTER, ALIKE = 0.4, 1.4, 1e-3
FEW = 5


def measure(turns: int, steps: int) -> dict[str, Any]:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors", "torch threads a rank": "1"}
    with Teams(LocalPlace(RANKS, one_machine=True)) as teams:
        done = teams.in_turns(list(TEAMS), TASK, turns, FIRST_STEPS, steps)
        teams.start(AGAIN, TASK)
        all_steps = {"do": "steps", "count": len(done[SHOAL].losses)}
        done[AGAIN] = Steps()
        done[AGAIN].take(teams.ask(AGAIN, all_steps), counts=False)
        versions = {shown_name(name): teams.versions[name] for name in (GLOO, SHOAL)}
        return {"facts": facts | versions, **teams.ends(done, (GLOO, SHOAL, AGAIN))}


def tell(found: dict[str, Any]) -> list[str]:
    done = {name: Steps(**one) for name, one in found["steps"].items()}
    count, steps = len(done[SHOAL].seconds), len(done[SHOAL].losses)
    alone, gloo, ours = (statistics.median(done[name].seconds) for name in TEAMS)
    apart = [abs(one - other) / other for one, other in zip(done[SHOAL].losses, done[GLOO].losses, strict=True)]
    ends = found["digests"]
    repeated = done[SHOAL].losses == done[AGAIN].losses and ends[SHOAL] == ends[AGAIN] and len(ends[SHOAL]) == 1
    return [
        f"Training a transformer of {found['bytes'] / 1e6:.1f} MB of float32 on {RANKS} ranks of one machine, "
        f"{SEQUENCES} × {LENGTH} characters a rank and step: medians of {count} turns of {STEPS} steps",
        "",
        *lined_up(table(done)),
        "",
        verdict(
            f"gloo's averaging at least {LEAST_SHARE:.0%} of its step, {1 - alone / gloo:.0%}",
            1 - alone / gloo >= LEAST_SHARE,
        ),
        verdict(f"a step at least {FASTER:g} times as fast as gloo's, {gloo / ours:.2f} ×", gloo / ours >= FASTER),
        verdict(
            f"the same losses in {steps} steps, at most {max(apart):.1e} of the loss apart ({max(apart[:FEW]):.1e} in the first "
            f"{FEW}: rounding, which training makes grow)",
            max(apart) < ALIKE,
        ),
        verdict("when Shoal runs again, the same bits of all losses and, on all ranks, of all parameters", repeated),
        f"loss: {done[SHOAL].losses[0]:.4f} at first, {done[SHOAL].losses[-1]:.4f} in the end; gloo's {done[GLOO].losses[-1]:.4f}",
        "",
        *(f"{name}: {fact}" for name, fact in found["facts"].items()),
    ]


def table(done: dict[str, Steps]) -> list[list[str]]:
    rows = [["", "step", "fastest", "slowest", "averaging", "of the step", "CPU s, all ranks"]]
    alone = statistics.median(done[ALONE].seconds)
    for name, words in TEAMS.items():
        seconds = done[name].seconds
        median = statistics.median(seconds)
        added = ["", ""] if name == ALONE else [show_seconds(max(median - alone, 0.0)), f"{1 - alone / median:.0%}"]
        times = map(show_seconds, (median, min(seconds), max(seconds)))
        rows.append([words, *times, *added, f"{statistics.median(done[name].cpu):.2f}"])
    return rows


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    found = measure(2, 2) if quick else measure(TURNS, STEPS)
    lines = tell(found)
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        stem.with_suffix(".json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
