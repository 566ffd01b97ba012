"""All-reduces of ranks on one machine, which share memory: 4 KiB, 1 MiB and 100 MB, 4 ranks and 8.

"Shoal shared" has its arrays in the shared memory, as gradients of shoal.torch have; Shoal has ordinary arrays. Targets, with 4
ranks: 100 MB at least 7 times as fast as gloo if shared, otherwise 5 times, and in at most 1.5 times what plain copies of the same
bytes take; 1 MiB at least 8 times as fast as gloo and no slower than Open MPI; 4 KiB within twice Open MPI's time; bfloat16 in the
time of as many bytes of float32. With 8 ranks faster than gloo at every size. On a machine with fewer cores than ranks, small sizes
show above all what the operating system needs to let each rank run once.

    python benchmarks/micro/inside_node.py [--quick]
        3 minutes; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import statistics

import click
import inside_node_ranks
from common import beside_rivals, lined_up, run_at, verdict
from inside_node_ranks import COPIES, ORDINARY, SHARED_FLOAT, SHARED_HALF
from results import results_of

from shoal.bench import LocalPlace, Plan, Report, Variant, notes, shown_name, variant_name
from shoal.bench.sizes import show_bytes, show_seconds
from shoal.testing import run_ranks

SMALL, MIDDLE, LARGE = 4 * 1024, 1024**2, 100_000_000
RANKS = (4, 8)
ROUNDS = 11
JOBS = 9


def measure(ranks: int, quick: bool) -> Report:
    plan = Plan(
        sizes=(SMALL, MIDDLE) if quick else (SMALL, MIDDLE, LARGE),
        rounds=2 if quick else ROUNDS,
        variants={"shared": Variant(shared=True)},
    )
    return run_at(LocalPlace(ranks, one_machine=True), plan)


def seconds_in_turns(ranks: int) -> dict[str, float]:
    """Of what inside_node_ranks.py lists: from the first rank's beginning to the last rank's end, medians of the rounds."""
    turns = run_ranks(inside_node_ranks.turns_of_rank, ranks, LARGE, ROUNDS, nodes=1, timeout=300)
    found = {}
    for name in turns[0]:
        rounds = zip(*(of_rank[name] for of_rank in turns), strict=True)
        found[name] = statistics.median(
            max(end for _, end in each) - min(began for began, _ in each) for each in rounds
        )
    return found


def tell(reports: dict[int, Report], in_turns: list[dict[str, float]]) -> list[str]:
    lines = ["Time of an all-reduce of float32 among ranks of one machine: median", ""]
    for ranks, report in reports.items():
        lines += [f"{ranks} ranks", *lined_up(beside_rivals(report)), ""]
    four, eight = reports[4], reports[8]
    lines += [faster(four, *wanted) for wanted in WANTED if wanted[1] in four.sizes and wanted[2] in four.contestants]
    for name in OURS:
        least = min(eight.speedup("gloo", size, of=name) for size in eight.sizes)
        lines.append(
            verdict(f"8 ranks, {shown_name(name)}: faster than gloo at every size, least {least:.2f} ×", least > 1)
        )
    return lines + (near_copies(in_turns) if in_turns else [])


def faster(report: Report, ours: str, size: int, rival: str, times: float) -> str:
    found = report.speedup(rival, size, of=ours)
    text = f"4 ranks, {show_bytes(size)}: {shown_name(ours)} {times:g} times {shown_name(rival)}, {found:.2f} ×"
    return verdict(text, found >= times)


def near_copies(jobs: list[dict[str, float]]) -> list[str]:
    """Every rank reads as many bytes as its array has, and writes as many: the least that there is to do.

    Several jobs, since a job's processes may lie well or badly in the machine's memory and caches for as long as it lasts.
    """
    names = {
        COPIES: "a copy by each rank",
        ORDINARY: "mean of float32",
        SHARED_FLOAT: "of float32 shared",
        SHARED_HALF: "of bfloat16 shared",
    }
    lines = ["", f"4 ranks, {show_bytes(LARGE)}, in turns; {len(jobs)} jobs"]
    lines += [f"{text:20}" + "".join(f"{show_seconds(job[name]):>9}" for job in jobs) for name, text in names.items()]
    lines += [
        at_most(jobs, ORDINARY, COPIES, 1.5, "mean of float32 in at most 1.5 times the time of the copies"),
        at_most(jobs, SHARED_FLOAT, COPIES, 1.5, "shared in at most 1.5 times the time of the copies"),
        at_most(
            jobs, SHARED_HALF, SHARED_FLOAT, 1.2, "bfloat16 in at most 1.2 times the time of as many bytes of float32"
        ),
    ]
    return lines


def at_most(jobs: list[dict[str, float]], name: str, other: str, most: float, text: str) -> str:
    found = sorted(job[name] / job[other] for job in jobs)
    median = statistics.median(found)
    return verdict(f"{text}, {median:.2f} × (median of {found[0]:.2f} to {found[-1]:.2f})", median <= most)


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
    reports = {ranks: measure(ranks, quick) for ranks in RANKS}
    in_turns = [] if quick else [seconds_in_turns(4) for _ in range(JOBS)]
    lines = [*tell(reports, in_turns), "", *notes(reports[4])]
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        kept = {str(ranks): json.loads(report.to_json()) for ranks, report in reports.items()}
        stem.with_suffix(".json").write_text(json.dumps({"in_turns": in_turns, "runs": kept}) + "\n")


if __name__ == "__main__":
    main()
