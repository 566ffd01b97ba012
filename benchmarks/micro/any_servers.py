"""Every number of dedicated servers: 8 nodes at 400 Mbit/s, none to 8 servers, against the least time T(n, k).

Targets: at most 1.10 × T(n, k) for each k. Without dedicated servers, the servers in the nodes are at most 5 % slower than
Shoal's own ring from 25 MB on, and faster below 1 MB; the ring itself is within 5 % of 2(n-1)/n · M/B. gloo is in each run.

Below 1 MB a cluster would compare steps: servers need 4, the ring 2(n-1). A lab cannot. At 32 KiB its 8 hosts keep
the cores of one machine busy all the time ("machine s/GB" by the number of cores is the median), so what is compared is
processor time; at 64 KiB still in part. From 256 KiB on both fill the links, but for the first moments of a turn (the last columns
of the table), and what remains is headers and openings, of which the ring has less.

    sudo python benchmarks/micro/any_servers.py [--quick] [--part 'k = 4']

Needs root. Takes 6 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import statistics
from typing import Any

from common import RING, WITH_RING, Part, Runs, Script, lined_up, verdict

from shoal.bench import Plan, Report, server_factor
from shoal.bench.sizes import show_bytes, show_seconds
from shoal.testing.lab import parse_rate

NODES = 8
RATE = "400mbit"
SIZE = 25_000_000
LARGE = 100_000_000
SMALL = (32_768, 65_536, 262_144, 524_288)
MOST = 1.10
MOST_OVER_RING = 1.05
MOST_RING = 1.05

_RING_NAME = "k = 0 and the ring"


def parts(quick: bool) -> list[Part]:
    rivals = ("shoal", "gloo")
    if quick:
        return [
            Part(_RING_NAME, "nodes=3,rate=400mbit", Plan((65_536, 1_000_000), 2, rivals, variants=WITH_RING)),
            Part("k = 1", "nodes=3,servers=1,rate=400mbit", Plan((1_000_000,), 2, rivals)),
        ]
    shape = f"nodes={NODES},rate={RATE}"
    return [
        Part(_RING_NAME, shape, Plan((*SMALL, SIZE), contestants=rivals, variants=WITH_RING)),
        Part(f"{_RING_NAME}, 100 MB", shape, Plan((LARGE,), contestants=rivals, variants=WITH_RING)),
        *(
            Part(f"k = {servers}", f"{shape},servers={servers}", Plan((SIZE,), contestants=rivals))
            for servers in range(1, NODES + 1)
        ),
    ]


def tell(runs: Runs) -> list[str]:
    lines = [
        "Nodes, k dedicated servers, T(n, k) in units of M/B, and the median time at the largest size of each run",
        "",
    ]
    rows = [["n", "k", "size", "T(n,k)·B/M", "Shoal", "× T(n,k)", "gloo", "Shoal is"]]
    rows += [_row(report, report.sizes[-1]) for report in runs.values()]
    lines += [*lined_up(rows), ""]
    rings = [report for report in runs.values() if RING in report.contestants]
    if rings:
        lines += ["Servers in the nodes against Shoal's own ring", "", *lined_up(_ring_rows(rings)), ""]
    return [*lines, *_verdicts(runs), *(line for report in rings for line in _ring_verdicts(report))]


def _row(report: Report, size: int) -> list[str]:
    return [
        str(report.nodes),
        str(report.servers),
        show_bytes(size),
        f"{server_factor(report.nodes, report.servers):.3f}",
        show_seconds(report.result("shoal", size).seconds),
        f"{report.bound_ratio('shoal', size) or 0.0:.3f}",
        show_seconds(report.result("gloo", size).seconds),
        f"{report.speedup('gloo', size):.2f} ×",
    ]


def _ring_rows(rings: list[Report]) -> list[list[str]]:
    head = ["size", "servers in nodes", "ring", "servers / ring", "of bytes on the wire", "ring × bound", "gloo"]
    rows = [[*head, "links busy: servers", "ring"]]
    for report in rings:
        for size in report.sizes:
            times = [show_seconds(report.result(name, size).seconds) for name in ("shoal", RING, "gloo")]
            ratio = report.bound_ratio(RING, size)
            share = f"{1 / report.speedup(RING, size):.3f}"
            sent, ring_sent = (report.result(name, size).wire_bytes or 0.0 for name in ("shoal", RING))
            of_bytes = f"{sent / ring_sent:.4f}" if ring_sent else ""
            bound = "" if ratio is None else f"{ratio:.3f}"
            busy = [f"{100 * _links_busy(report, name, size):.1f} %" for name in ("shoal", RING)]
            rows.append([show_bytes(size), *times[:2], share, of_bytes, bound, times[2], *busy])
    return rows


def _links_busy(report: Report, contestant: str, size: int) -> float:
    """Of the time that an operation takes, how much its bytes take the links, without what they let through for nothing."""
    result = report.result(contestant, size)
    links = report.nodes + report.servers
    free = links * report.network.burst / result.repetitions
    per_second = links * parse_rate(RATE) / 8
    return statistics.median(((turn.wire_bytes or 0.0) - free) / (per_second * turn.seconds) for turn in result.turns)


def _verdicts(runs: Runs) -> list[str]:
    ratios = {(r.servers, r.sizes[-1]): r.bound_ratio("shoal", r.sizes[-1]) or 0.0 for r in runs.values()}
    (servers, size), worst = max(ratios.items(), key=lambda item: item[1])
    words = f"at most {MOST} × T(n, k), largest {worst:.3f} at k = {servers}, {show_bytes(size)}, of {len(ratios)} runs"
    return [verdict(words, worst <= MOST)]


def _ring_verdicts(report: Report) -> list[str]:
    lines = []
    for size in report.sizes:
        share = 1 / report.speedup(RING, size)
        if size < 1_000_000:
            lines.append(
                verdict(f"k = 0, {show_bytes(size)}, faster than the ring, {share:.3f} of its time", share < 1)
            )
            continue
        ratio = report.bound_ratio(RING, size) or 0.0
        words = f"k = 0, {show_bytes(size)}, {share:.3f} of the ring's time, at most {MOST_OVER_RING}"
        lines.append(verdict(words, share <= MOST_OVER_RING))
        words = f"the ring, {show_bytes(size)}, {ratio:.3f} × 2(n-1)/n · M/B, at most {MOST_RING}"
        lines.append(verdict(words, ratio <= MOST_RING))
    return lines


def draw(runs: Runs) -> Any:
    """T(n, k) as a line, what was measured as points."""
    reports = [report for report in runs.values() if SIZE in report.sizes]
    if not reports:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    counts = [report.servers for report in reports]
    bounds = [report.network.bound("shoal", SIZE) or 0.0 for report in reports]
    axes.plot(counts, bounds, color="#999999", linestyle=":", label="T(n, k), this run's B")
    for name, colour, label in (("shoal", "#0b6e99", "Shoal"), ("gloo", "#d9822b", "gloo, in the same run")):
        times = [report.result(name, SIZE).seconds for report in reports]
        axes.plot(counts, times, color=colour, marker="o", markersize=4, linestyle="", label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("dedicated servers")
    axes.set_ylabel("seconds")
    axes.set_title(f"{show_bytes(SIZE)}, {reports[0].nodes} nodes, 400 Mbit/s", fontsize=10)
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    return figure


if __name__ == "__main__":
    Script(Path(__file__), parts, tell, draw).main()
