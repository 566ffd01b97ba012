"""Collectives of torch.distributed that are no all-reduces, on the backends "shoal" and "gloo": 4 ranks on one machine, in turns.

Both backends are there in the same processes, and each turn is one operation, from a barrier to the last rank's result. M bytes are
what a rank has: the gathered array is 4 M, and so is what is scattered or exchanged.

    python benchmarks/micro/c10d_collectives.py [--quick]
        1 minute; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import statistics

import click
import torch
from c10d_collectives_ranks import BACKENDS, Found, take_turns
from common import lined_up
from results import results_of

from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_bytes, show_seconds
from shoal.bench.watch import foreign_load
from shoal.testing import run_ranks

RANKS, TURNS = 4, 9
SIZES = (4 * 1024, 1024**2, 25_000_000)


def tell(by_rank: list[Found], facts: dict[str, str]) -> list[str]:
    rows = [["size", "", *BACKENDS, "Shoal is"]]
    for size, operations in by_rank[0].items():
        for operation in operations:
            # A turn takes as long as its slowest rank.
            medians = {
                backend: statistics.median(
                    max(turn) for turn in zip(*(rank[size][operation][backend] for rank in by_rank), strict=True)
                )
                for backend in BACKENDS
            }
            times = [show_seconds(medians[backend]) for backend in BACKENDS]
            ratio = f"{medians['gloo'] / medians['shoal']:.2f} ×"
            rows.append([show_bytes(int(size)), operation, *times, ratio])
    turns = len(by_rank[0][str(SIZES[0])]["barrier"]["gloo"])
    return [
        f"Collectives of torch.distributed on {RANKS} ranks of one machine, float32: medians of {turns} turns",
        "",
        *lined_up(rows),
        "",
        *(f"{name}: {fact}" for name, fact in facts.items()),
    ]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Small sizes and few turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    facts = machine_facts() | {
        "other load, before": f"{foreign_load():.2f} processors",
        "torch": torch.__version__,
        "torch threads a rank": "1",
    }
    found = run_ranks(take_turns, RANKS, SIZES[:2] if quick else SIZES, 2 if quick else TURNS, nodes=1, timeout=300)
    lines = tell(found, facts)
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        stem.with_suffix(".json").write_text(json.dumps({"facts": facts, "ranks": found}) + "\n")


if __name__ == "__main__":
    main()
