"""All-reduces of ranks on one machine, which share memory: 4 KiB, 1 MiB and 100 MB, 4 ranks and 8.

Targets, with 4 ranks: 100 MB at least 5 times as fast as gloo and in at most 1.5 times what plain copies of the same bytes
take; 1 MiB at least 8 times as fast as gloo and no slower than Open MPI; 4 KiB within twice Open MPI's time. With 8 ranks faster
than gloo at every size. On a machine with fewer cores than ranks, small sizes show above all what the operating system needs to
let each rank run once.

    python benchmarks/inside_node.py [--quick]
        2 minutes; results beside it (.txt, .json)
"""

import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path

import click
import numpy as np
from common import beside_rivals, lined_up, verdict

from shoal.bench import LocalPlace, Plan, Progress, Report, notes, run
from shoal.bench.sizes import show_bytes, show_seconds

SMALL, MIDDLE, LARGE = 4 * 1024, 1024**2, 100_000_000
RANKS = (4, 8)
ROUNDS = 11


def measure(ranks: int, quick: bool) -> Report:
    plan = Plan(sizes=(SMALL, MIDDLE) if quick else (SMALL, MIDDLE, LARGE), rounds=2 if quick else ROUNDS)
    place = LocalPlace(ranks, one_machine=True)
    progress = Progress(sys.stderr)
    try:
        return run(plan, place, progress)
    finally:
        progress.end()
        place.close()


def seconds_of_copies(ranks: int) -> float:
    """Every rank reads as many bytes as one array of the largest size has, and writes as many: the least that there is."""
    with multiprocessing.get_context("spawn").Pool(ranks) as pool:
        return statistics.median(max(pool.map(_copy, [LARGE] * ranks, chunksize=1)) for _ in range(5))


def _copy(size: int) -> float:
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    best = []
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        best.append(time.perf_counter() - began)
    return statistics.median(best)


def tell(reports: dict[int, Report], copies: float) -> list[str]:
    lines = ["Time of an all-reduce of float32 among ranks of one machine: median", ""]
    for ranks, report in reports.items():
        lines += [f"{ranks} ranks", *lined_up(beside_rivals(report)), ""]
    four = reports[4]
    checks = [
        (f"{show_bytes(size)}: {times:g} times gloo", four.speedup("gloo", size), times) for size, times in WANTED
    ]
    lines += [verdict(f"4 ranks, {text}, {found:.1f} ×", found >= times) for text, found, times in checks if found]
    if "openmpi" in four.contestants:
        against = [(MIDDLE, 1.0), (SMALL, 0.5)]
        lines += [
            verdict(
                f"4 ranks, {show_bytes(size)}: {times:g} times Open MPI, {four.speedup('openmpi', size):.2f} ×",
                four.speedup("openmpi", size) >= times,
            )
            for size, times in against
        ]
    if LARGE in four.sizes:
        ratio = four.result("shoal", LARGE).seconds / copies
        lines.append(
            verdict(
                f"4 ranks, {show_bytes(LARGE)}: at most 1.5 times the {show_seconds(copies)} that 4 processes take to copy an array "
                f"each, {ratio:.2f} ×",
                ratio <= 1.5,
            )
        )
    eight = reports[8]
    least = min(eight.speedup("gloo", size) for size in eight.sizes)
    lines.append(verdict(f"8 ranks, faster than gloo at every size, least {least:.2f} ×", least > 1))
    return lines


WANTED = ((LARGE, 5), (MIDDLE, 8))


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Small sizes and few turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    copies = seconds_of_copies(4)
    reports = {ranks: measure(ranks, quick) for ranks in RANKS}
    lines = [*tell(reports, copies), "", *notes(reports[4])]
    print("\n".join(lines))
    if not quick:
        stem = Path(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        kept = {str(ranks): json.loads(report.to_json()) for ranks, report in reports.items()}
        stem.with_suffix(".json").write_text(json.dumps({"copies": copies, "runs": kept}) + "\n")


if __name__ == "__main__":
    main()
