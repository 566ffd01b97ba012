"""Tables V and VI of the Herring paper, as far as they mean something over TCP: what is in flight, and who handles it.

Table V has 100 MB in 13 to 16 ms with EFA and 21 to 31 ms over TCP, which the authors put down to flows that run ahead of each
other. EFA cannot be had here, but what it does can: bounding what a flow has in flight. So the question is how the time
depends on the segment (the unit on the wire) and on the credit (what a node may have unanswered at one server), from a few
packets to no bound at all, in switches with deep and with shallow queues; and whether ``init`` finds a good place there.

Table VI has 13 to 16 ms with several proxies a server and 18 to 22 ms without. Here these are a server's threads, and
SHOAL_SOCKETS, the connections between a node and a server. All hosts share the cores of one machine, so more threads can
gain nothing; what is asked is what they cost. More connections share what may be in flight, so their segments are smaller.

    sudo python benchmarks/papers/herring_table5_segments.py [--quick] [--part 'queue 256 KB']

Needs root. Takes 7 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from collections.abc import Mapping
from typing import Any

from common import Part, Runs, Script, grid, lined_up

from shoal.bench import Plan, Report, Variant, shown_name, variant_name
from shoal.bench.sizes import show_bytes, show_seconds

NODES = 8
SIZE = 25_000_000
ROUNDS = 5
KIB = 1024

# A server's shard of 25 MB is 3.1 MB: the largest credit bounds nothing.
CREDITS = (8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, 4096 * KIB)
SEGMENTS = (4 * KIB, 16 * KIB, 64 * KIB)
QUEUES = {"queue 4 MB": "4mb", "queue 256 KB": "256kb"}

THREADS: Mapping[str, Variant] = {
    "with 2 sockets": Variant(environment={"SHOAL_SOCKETS": "2"}),
    "with 4 sockets": Variant(environment={"SHOAL_SOCKETS": "4"}),
    "with 1 proxy": Variant(proxies=1),
    "with 4 proxies": Variant(proxies=4),
}


def parts(quick: bool) -> list[Part]:
    if quick:
        few = grid((16 * KIB, 64 * KIB), (16 * KIB,))
        return [_part("queue 4 MB", "nodes=2,servers=2,rate=400mbit", few, True)]
    shape = f"nodes={NODES},servers={NODES},rate=400mbit"
    variants = grid(CREDITS, SEGMENTS)
    return [
        *(_part(name, f"{shape},queue={queue}", variants) for name, queue in QUEUES.items()),
        _part("threads, 400 Mbit/s", shape, THREADS),
        _part("threads, unshaped", "nodes=4,servers=2", THREADS),
    ]


def _part(name: str, lab: str, variants: Mapping[str, Variant], quick: bool = False) -> Part:
    sizes, rounds = ((1_000_000,), 2) if quick else ((SIZE,), ROUNDS)
    return Part(name, lab, Plan(sizes, rounds, ("shoal", "gloo"), variants=variants))


def tell(runs: Runs) -> list[str]:
    lines = []
    for name, report in runs.items():
        lines += [*(_grid_lines(name, report) if name in QUEUES else _thread_lines(name, report)), ""]
    return lines[:-1]


def _grid_lines(name: str, report: Report) -> list[str]:
    size = report.sizes[0]
    ratio, gloo = report.bound_ratio("shoal", size) or 0.0, report.result("gloo", size).seconds
    return [
        f"{name}, n = k = {report.nodes}, {show_bytes(size)}: median by the bound; rows are segments, columns credits of a",
        "node at one server; with the largest credit nothing is bounded but by TCP",
        "",
        *lined_up(_grid_rows(report)),
        "",
        f"init chose {_sizes(report, 'shoal')}: {ratio:.3f}",
        f"gloo: {show_seconds(gloo)}, which is {gloo / (report.network.bound('shoal', size) or 1.0):.3f} in these units",
    ]


def _grid_rows(report: Report) -> list[list[str]]:
    size = report.sizes[0]
    points = _points(report)
    credits = sorted({credit for _, credit in points})
    rows = [["", *(show_bytes(credit) for credit in credits)]]
    for segment in sorted({segment for segment, _ in points}):
        found = [points.get((segment, credit)) for credit in credits]
        ratios = [None if name is None else report.bound_ratio(name, size) for name in found]
        rows.append([show_bytes(segment), *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios)])
    return rows


def _points(report: Report) -> dict[tuple[int, int], str]:
    """(segment, credit) → the variant that was given them."""
    return {(limits["segment"], limits["credit"]): name for name, limits in report.limits.items() if name != "shoal"}


def _thread_lines(name: str, report: Report) -> list[str]:
    size = report.sizes[0]
    rows = [["", "segment of credit", "median", "× Shoal as it is", "CPU s/GB"]]
    for contestant in ("shoal", *map(variant_name, THREADS), "gloo"):
        result = report.result(contestant, size)
        share = 1 / report.speedup("shoal", size, of=contestant)
        shown = shown_name(contestant)
        sizes = _sizes(report, contestant)
        rows.append([shown, sizes, show_seconds(result.seconds), f"{share:.3f}", f"{result.cpu_per_gb:.2f}"])
    return [f"{name}, n = {report.nodes}, k = {report.servers}, {show_bytes(size)}", "", *lined_up(rows)]


def _sizes(report: Report, contestant: str) -> str:
    limits = report.limits.get(contestant)
    return f"{show_bytes(limits['segment'])} of {show_bytes(limits['credit'])}" if limits else ""


def draw(runs: Runs) -> Any:
    """The time against what may be in flight toward a port, a line for each segment, a panel for each depth of the queues."""
    shown = {name: report for name, report in runs.items() if name in QUEUES}
    if not shown:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(shown), 4.0), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for axes, (name, report) in zip(panels, shown.items(), strict=True):
        _draw_grid(axes, name, report)
    panels[0].set_ylabel("median / bound")
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def _draw_grid(axes: Any, name: str, report: Report) -> None:
    size, points = report.sizes[0], _points(report)
    for segment in sorted({segment for segment, _ in points}):
        line = sorted((credit, contestant) for (own, credit), contestant in points.items() if own == segment)
        ratios = [report.bound_ratio(contestant, size) or 0.0 for _, contestant in line]
        label = f"segments of {show_bytes(segment)}"
        axes.plot([credit * report.nodes for credit, _ in line], ratios, marker="o", markersize=4, label=label)
    chosen = report.limits["shoal"]["credit"] * report.nodes
    axes.plot(chosen, report.bound_ratio("shoal", size) or 0.0, "k*", markersize=11, label="what init chose")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({credit * report.nodes for _, credit in points})
    axes.set_xticks(ticks, [show_bytes(tick) for tick in ticks], rotation=45, ha="right", fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, position: f"{value:g}")
    axes.set_xlabel("bytes that may be in flight toward a port")
    axes.set_title(f"{name}, {report.nodes} nodes, {report.servers} servers, {show_bytes(size)}", fontsize=10)
    axes.grid(color="#e5e5e5", linewidth=0.6)


if __name__ == "__main__":
    Script(Path(__file__), parts, tell, draw).main()
