"""What a job costs another one on the same servers, when it behaves and when it does not: ranks whose shapes differ all the
time, a rank that never calls what the others wait for, a rank that is killed.

Target: beside a job that misbehaves, all-reduces take at most 15 % longer than beside one that behaves. The other job comes
and goes in turns while the first runs.

    sudo python benchmarks/micro/neighbour_jobs.py [--turns 4] [--out FILE]

Needs root. Takes 3 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import statistics
import time

import click
from common import verdict
from results import results_of
from watched_job import SHAPES, SILENT, TIMED, WELL, medians_of, place, within

from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_seconds
from shoal.bench.watch import foreign_load
from shoal.testing.lab import Lab, LinkShape

NODES, SERVERS = 2, 2  # nodes of each job
RATE = 400e6
SIZE = 8_000_000
TURN = 5.0
# Of each turn: until both jobs have found their way.
SETTLING = 1.0
SLOWER = 1.15

KILLED = "killed"
KINDS = {
    WELL: "behaves",
    SHAPES: "its shapes differ",
    SILENT: "a rank never calls",
    KILLED: "a rank is killed",
    "": "is not there",
}


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--turns", default=4, help="Of each kind of other job.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=results_of(__file__).with_suffix(".txt")
)
def main(turns: int, out: Path) -> None:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors"}
    moments: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with Lab(2 * NODES + SERVERS, LinkShape(rate=RATE)) as lab, place(lab, lab.hosts[2 * NODES :]) as there:
        job = there.job(lab.hosts[:NODES], TIMED, SIZE)
        for kind in [*KINDS] * turns:
            behaviour = WELL if kind == KILLED else kind
            other = there.job(lab.hosts[NODES : 2 * NODES], behaviour, SIZE) if behaviour else None
            began = time.monotonic()
            if other is not None and kind == KILLED:
                time.sleep(SETTLING)
                other.ranks[1].kill()
            time.sleep(max(0.0, began + TURN - time.monotonic()))
            moments[kind].append((began + SETTLING, time.monotonic()))
            if other is not None:
                other.kill()
        timings = job.timings()
    lines = _describe({kind: [within(timings, *moment) for moment in own] for kind, own in moments.items()})
    lines += ["", *(f"{name}: {fact}" for name, fact in facts.items())]
    out.write_text("\n".join(lines) + "\n")
    print(out.read_text(), end="")


def _describe(found: dict[str, list[list[float]]]) -> list[str]:
    medians = medians_of(found)
    lines = [
        f"All-reduces of {SIZE / 1e6:g} MB of a job of {NODES} nodes; another of {NODES} has the same {SERVERS} servers; {RATE / 1e6:g} Mbit/s",
        "",
        f"{'the other job':<22}{'median':>10}{'turns from':>12}{'to':>10}{'against one that behaves':>27}",
    ]
    for kind, turns in found.items():
        own = [statistics.median(turn) for turn in turns]
        cells = [
            f"{show_seconds(value):>{width}}" for value, width in ((medians[kind], 10), (min(own), 12), (max(own), 10))
        ]
        lines.append(f"{KINDS[kind]:<22}{''.join(cells)}{medians[kind] / medians[WELL]:>27.2f}")
    lines.append("")
    for kind in (SHAPES, SILENT, KILLED):
        ratio = medians[kind] / medians[WELL]
        lines.append(verdict(f"{KINDS[kind]}: at most {SLOWER:g} times, {ratio:.2f}", ratio <= SLOWER))
    return lines


if __name__ == "__main__":
    main()
