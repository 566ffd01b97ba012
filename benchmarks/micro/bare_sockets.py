"""Processor time for a byte, beside that of bare sockets that move the same bytes both ways, by turns in one run.

2 nodes average 16 MiB by way of a dedicated server, all over loopback. The bare sockets are as many processes and connections in
C++ (benchmarks/native/bare_sockets.cpp): frames of the same size, with headers, from and to arrays of the same size, and nothing
else. The processor time of all processes is counted. Targets: at most 1.3 times that of bare sockets at 256 KiB a
segment, 1.5 at 64 KiB.

    python benchmarks/micro/bare_sockets.py [--quick]

Takes a minute, and wants a machine that does nothing else; g++ has to be there.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from typing import Any

import click
from common import lined_up, verdict
from results import Part, in_parts
from server_cost import ARRAY_BYTES, REPETITIONS, server_cost

from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_bytes
from shoal.bench.watch import foreign_load

KIB = 1024
NODES = 2
TARGETS = {16 * KIB: None, 64 * KIB: 1.5, 256 * KIB: 1.3}
ROUNDS, QUICK_ROUNDS = 21, 3
_SOURCE = Path(__file__).resolve().parents[1] / "native" / "bare_sockets.cpp"
_PATIENCE = 60.0


def measure(quick: bool) -> dict[str, Any]:
    load = foreign_load()
    turns: dict[str, list[list[float]]] = {str(frame): [] for frame in TARGETS}
    with tempfile.TemporaryDirectory(prefix="shoal-bare-") as folder:
        program = Path(folder) / "bare_sockets"
        subprocess.run(["g++", "-O2", "-std=c++20", "-o", program, _SOURCE], check=True)
        for _ in range(QUICK_ROUNDS if quick else ROUNDS):
            for frame in TARGETS:
                server, node, _ = server_cost(frame, NODES)
                turns[str(frame)].append([1e9 * server, 1e9 * node, *_bare(program, frame)])
    return {"turns": turns, "facts": {**machine_facts(), "other load, before": f"{load:.2f} processors"}}


def _bare(program: Path, frame: int) -> tuple[float, float]:
    """Nanoseconds of the server, a byte received, and of a node, a byte sent."""
    command = [program, *(str(number) for number in (NODES, frame, ARRAY_BYTES, REPETITIONS))]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE).stdout.split()
    return float(said[0]), float(said[1])


def tell(found: dict[str, Any]) -> list[str]:
    rows = [["segments", "server", "node", "both", "bare server", "bare node", "both", "ratio", "middle half"]]
    verdicts = []
    for frame, target in TARGETS.items():
        turns = found["turns"][str(frame)]
        server, node, bare_server, bare_node = (statistics.median(column) for column in zip(*turns, strict=True))
        ratios = [(turn[0] + turn[1]) / (turn[2] + turn[3]) for turn in turns]
        ratio = statistics.median(ratios)
        low, _, high = statistics.quantiles(ratios, n=4)
        figures = (server, node, server + node, bare_server, bare_node, bare_server + bare_node)
        rows.append(
            [show_bytes(frame), *(f"{each:.3f}" for each in figures), f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"]
        )
        if target is not None:
            verdicts.append(
                verdict(f"{show_bytes(frame)}: {ratio:.2f} times bare sockets, at most {target:g}", ratio <= target)
            )
    return [*lined_up(rows), "", *verdicts]


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="A trial run, which keeps nothing.")
def main(quick: bool) -> None:
    title = f"Processor nanoseconds a byte, {NODES} nodes and a dedicated server over loopback, beside bare sockets"
    in_parts(__file__, title, {"loopback": Part(measure, tell)}, None, quick)


if __name__ == "__main__":
    main()
