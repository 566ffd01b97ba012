"""All-reduces of ranks on one machine, which share memory: 4 KiB, 1 MiB and 100 MB, 4 ranks and 8.

"Shoal shared" has its arrays in the shared memory, as gradients of shoal.torch have; Shoal has ordinary arrays. Targets, with 4
ranks: 100 MB at least 7 times as fast as gloo if shared, otherwise 5 times, and in at most 1.5 times what plain copies of the same
bytes take; 1 MiB at least 8 times as fast as gloo and no slower than Open MPI; 4 KiB within twice Open MPI's time; bfloat16 in the
time of as many bytes of float32. With 8 ranks faster than gloo at every size. On a machine with fewer cores than ranks, small sizes
show above all what the operating system needs to let each rank run once.

    python benchmarks/inside_node.py [--quick]
        3 minutes; results beside it (.txt, .json)
"""

import json
import multiprocessing
import statistics
import time
from pathlib import Path

import click
import numpy as np
import shared_arrays
from common import beside_rivals, lined_up, run_at, verdict

from shoal.bench import LocalPlace, Plan, Report, Variant, notes, shown_name, variant_name
from shoal.bench.sizes import show_bytes, show_seconds
from shoal.testing import run_ranks

SMALL, MIDDLE, LARGE = 4 * 1024, 1024**2, 100_000_000
RANKS = (4, 8)
ROUNDS = 11


def measure(ranks: int, quick: bool) -> Report:
    plan = Plan(
        sizes=(SMALL, MIDDLE) if quick else (SMALL, MIDDLE, LARGE),
        rounds=2 if quick else ROUNDS,
        variants={"shared": Variant(shared=True)},
    )
    return run_at(LocalPlace(ranks, one_machine=True), plan)


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


def tell(reports: dict[int, Report], copies: float, dtypes: dict[str, float]) -> list[str]:
    lines = ["Time of an all-reduce of float32 among ranks of one machine: median", ""]
    for ranks, report in reports.items():
        lines += [f"{ranks} ranks", *lined_up(beside_rivals(report)), ""]
    four, eight = reports[4], reports[8]
    lines += [faster(four, *wanted) for wanted in WANTED if wanted[1] in four.sizes and wanted[2] in four.contestants]
    if LARGE in four.sizes:
        lines += [near_copies(four, name, copies) for name in OURS]
        shown = ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in dtypes.items())
        ratio = dtypes["bfloat16"] / dtypes["float32"]
        lines.append(
            verdict(f"4 ranks, {show_bytes(LARGE)} shared: {shown}, at most 1.2 times, {ratio:.2f} ×", ratio <= 1.2)
        )
    for name in OURS:
        least = min(eight.speedup("gloo", size, of=name) for size in eight.sizes)
        lines.append(
            verdict(f"8 ranks, {shown_name(name)}: faster than gloo at every size, least {least:.2f} ×", least > 1)
        )
    return lines


def faster(report: Report, ours: str, size: int, rival: str, times: float) -> str:
    found = report.speedup(rival, size, of=ours)
    text = f"4 ranks, {show_bytes(size)}: {shown_name(ours)} {times:g} times {shown_name(rival)}, {found:.2f} ×"
    return verdict(text, found >= times)


def near_copies(report: Report, ours: str, copies: float) -> str:
    ratio = report.result(ours, LARGE).seconds / copies
    return verdict(
        f"4 ranks, {show_bytes(LARGE)}: {shown_name(ours)} in at most 1.5 times the {show_seconds(copies)} that 4 processes take to "
        f"copy an array each, {ratio:.2f} ×",
        ratio <= 1.5,
    )


SHARED = variant_name("shared")
OURS = ("shoal", SHARED)

# Whose time for which size, beside which rival, is to be so many times shorter.
WANTED = (
    (SHARED, LARGE, "gloo", 7.0),
    ("shoal", LARGE, "gloo", 5.0),
    (SHARED, MIDDLE, "gloo", 8.0),
    ("shoal", MIDDLE, "gloo", 8.0),
    ("shoal", MIDDLE, "openmpi", 1.0),
    ("shoal", SMALL, "openmpi", 0.5),
)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Small sizes and few turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    copies = seconds_of_copies(4)
    reports = {ranks: measure(ranks, quick) for ranks in RANKS}
    dtypes = {} if quick else run_ranks(shared_arrays.seconds_by_dtype, 4, LARGE, ROUNDS, nodes=1, timeout=300)[0]
    lines = [*tell(reports, copies, dtypes), "", *notes(reports[4])]
    print("\n".join(lines))
    if not quick:
        stem = Path(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        kept = {str(ranks): json.loads(report.to_json()) for ranks, report in reports.items()}
        stem.with_suffix(".json").write_text(json.dumps({"copies": copies, "dtypes": dtypes, "runs": kept}) + "\n")


if __name__ == "__main__":
    main()
