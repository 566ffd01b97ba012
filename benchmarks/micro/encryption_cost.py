"""What encryption costs a flow: the same bytes from one node to another over one connection, in the clear and encrypted.

Rank 0 sends an array to rank 1 (an all-to-all in which nobody else has anything to send), on this machine's loopback, by the
product's own links. Jobs in the clear and encrypted ones take turns. A processor's time counts on both sides, kernel included:
on a network that is slower than this, it is what encryption takes, and the time is the network's.

    python benchmarks/micro/encryption_cost.py [--out FILE]

Takes half a minute, and wants a machine that does nothing else.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import statistics
from typing import TextIO

import click
from encryption_cost_ranks import BYTES, ROUNDS, Side, flow
from results import results_of

from shoal import _native
from shoal.bench.machine import machine_facts
from shoal.testing import Cluster

TURNS = 3
GIGABYTE = 1e9


def measure() -> dict[str, list[tuple[float, float]]]:
    """By SHOAL_TLS: of each turn, GB/s of the median round, and processor seconds for a GB on both sides together."""
    found: dict[str, list[tuple[float, float]]] = {"off": [], "psk": []}
    for _ in range(TURNS):
        for tls, turns in found.items():
            with Cluster(2, environment={"SHOAL_TLS": tls}) as cluster:
                sides: list[Side] = cluster.start(flow).results()
            median = statistics.median(max(pair) for pair in zip(*(side.seconds for side in sides), strict=True))
            gigabytes = BYTES * ROUNDS / GIGABYTE
            turns.append((BYTES / GIGABYTE / median, sum(side.processor for side in sides) / gigabytes))
    return found


@click.command(help=__doc__)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=results_of(__file__).with_suffix(".txt")
)
def main(out: Path) -> None:
    with out.open("w") as file:
        _report(file)
    print(out.read_text(), end="")


def _report(out: TextIO) -> None:
    facts = machine_facts() | {"encryption": f"{_native.Tls.version()}, TLS_AES_128_GCM_SHA256"}
    print(*(f"{name}: {fact}" for name, fact in facts.items()), sep="\n", file=out)
    print(
        f"\n{BYTES // 1024**2} MiB a round, {ROUNDS} rounds a turn, {TURNS} turns; medians, and every turn\n", file=out
    )
    found = measure()
    for tls, turns in found.items():
        rates, costs = zip(*turns, strict=True)
        every = " ".join(f"{rate:.2f}" for rate in rates)
        print(
            f"SHOAL_TLS={tls}: {statistics.median(rates):.2f} GB/s ({every}), "
            f"{statistics.median(costs):.2f} CPU s/GB on both sides together",
            file=out,
        )


if __name__ == "__main__":
    main()
