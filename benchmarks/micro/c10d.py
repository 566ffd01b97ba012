"""All-reduces called through torch.distributed: its backends "shoal" and "gloo", side by side.

2 ranks on one machine, the same as two nodes that have nothing but TCP, and 4 ranks on one machine. Targets: with 2 ranks 1 KiB is
no slower than gloo and 25 MiB at least as fast; 4 ranks of one machine are at least 4 times as fast as gloo. "Shoal" is shoal.allreduce_
itself: what torch.distributed adds to it is the difference.

    python benchmarks/micro/c10d.py [--quick]
        3 minutes; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json

import click
from common import beside_rivals, lined_up, run_at, verdict
from results import results_of

from shoal.bench import LocalPlace, Plan, Report, Variant, notes, variant_name
from shoal.bench.sizes import show_bytes

KIB, MIB = 1024, 1024**2
SMALL, LARGE = KIB, 25 * MIB
SIZES = (SMALL, 64 * KIB, MIB, LARGE)
ROUNDS = 11
C10D = variant_name("c10d")

# Ranks, whether they share a machine, and how many times as fast as gloo they are to be.
PLACES = {
    "2 ranks on one machine": (2, True, 1.0),
    "2 nodes": (2, False, 1.0),
    "4 ranks on one machine": (4, True, 4.0),
}
# Of these sizes the targets speak.
WANTED = (SMALL, LARGE)


def measure(ranks: int, one_machine: bool, quick: bool) -> Report:
    plan = Plan(
        sizes=SIZES[:2] if quick else SIZES,
        rounds=2 if quick else ROUNDS,
        contestants=("shoal", "gloo"),
        variants={"c10d": Variant(c10d=True)},
    )
    return run_at(LocalPlace(ranks, one_machine=one_machine), plan)


def tell(reports: dict[str, Report]) -> list[str]:
    lines = ["Time of torch.distributed.all_reduce of float32: median", ""]
    for name, report in reports.items():
        lines += [name, *lined_up(beside_rivals(report)), ""]
    for name, report in reports.items():
        times = PLACES[name][2]
        for size in WANTED:
            if size in report.sizes:
                found = report.speedup("gloo", size, of=C10D)
                text = f"{name}, {show_bytes(size)}: at least {times:g} times as fast as gloo, {found:.2f} ×"
                lines.append(verdict(text, found >= times))
    return lines


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Small sizes and few turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    reports = {name: measure(ranks, one_machine, quick) for name, (ranks, one_machine, _) in PLACES.items()}
    lines = [*tell(reports), "", *notes(next(iter(reports.values())))]
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        kept = {name: json.loads(report.to_json()) for name, report in reports.items()}
        stem.with_suffix(".json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
