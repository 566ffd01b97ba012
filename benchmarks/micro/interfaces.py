"""Several interfaces: 2 nodes and 2 servers with a link of 400 and one of 200 Mbit/s each, all-reduces of 25 MB.

Target: at most 1.05 × the bound of both rates together. Jobs on the first network alone, and on both, take turns.

    sudo python benchmarks/micro/interfaces.py [--turns 5] [--out FILE]

Needs root. Takes a minute on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import itertools
import os
import statistics
import time

import click
from common import lined_up, verdict
from results import results_of
from watched_job import TIMED, place, within

from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_seconds
from shoal.bench.watch import foreign_load
from shoal.testing.lab import Lab, LinkShape

NODES = SERVERS = 2
RATES = {"eth0": 400e6, "eth1": 200e6}
SIZE = 25_000_000
TURN = 5.0
# Of each turn, until the job has found its way.
SETTLING = 1.0
MOST = 1.05
# Of a frame of 1514 bytes, which is what the lab's links count, so many carry data.
PAYLOAD = 1448 / 1514
ALONE, BOTH = "eth0", ",".join(RATES)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--turns", default=5, help="Jobs on each choice of interfaces.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=results_of(__file__).with_suffix(".txt")
)
def main(turns: int, out: Path) -> None:
    facts = machine_facts() | {
        "other load, before": f"{foreign_load():.2f} processors",
        "niceness": str(os.nice(0)),
    }
    found: dict[str, list[list[float]]] = {ALONE: [], BOTH: []}
    first, *further = (LinkShape(rate=rate) for rate in RATES.values())
    with (
        Lab(NODES + SERVERS, first, further=further) as lab,
        place(lab, lab.hosts[NODES:], interfaces=BOTH) as there,
    ):
        for chosen in [*found] * turns:
            job = there.job(lab.hosts[:NODES], TIMED, SIZE, interfaces=chosen)
            began = time.monotonic()
            time.sleep(TURN)
            found[chosen].append(within(job.timings(), began + SETTLING, time.monotonic()))
            job.kill()
    lines = [*_describe(found), "", *(f"{name}: {fact}" for name, fact in facts.items())]
    out.write_text("\n".join(lines) + "\n")
    print(out.read_text(), end="")


def bound(chosen: str) -> float:
    """Seconds: every node's link carries all bytes once each way, and so does every server's, as there are as many."""
    rate = sum(RATES[name] for name in chosen.split(","))
    return 8 * SIZE / (rate * PAYLOAD)


def _describe(found: dict[str, list[list[float]]]) -> list[str]:
    rows = [["SHOAL_INTERFACE", "Mbit/s", "all-reduces", "median", "jobs from", "to", "bound", "× bound"]]
    ratios = {}
    for chosen, jobs in found.items():
        every = [*itertools.chain.from_iterable(jobs)]
        median, own = statistics.median(every), [statistics.median(job) for job in jobs]
        ratios[chosen] = median / bound(chosen)
        rates = " + ".join(f"{RATES[name] / 1e6:g}" for name in chosen.split(","))
        times = [show_seconds(value) for value in (median, min(own), max(own), bound(chosen))]
        rows.append([chosen, rates, str(len(every)), *times, f"{ratios[chosen]:.3f}"])
    title = f"All-reduces of {SIZE / 1e6:g} MB, {NODES} nodes and {SERVERS} servers, all with both interfaces"
    target = f"{BOTH}: {ratios[BOTH]:.3f} × the bound of both rates together, at most {MOST:g}"
    return [title, "", *lined_up(rows), "", verdict(target, ratios[BOTH] <= MOST)]


if __name__ == "__main__":
    main()
