"""Fig. 10 of the Herring paper: the time of one all-reduce against its size and the number of nodes, as many servers as nodes.

The paper has 100 MB to 1.6 GB on 100 Gbit/s EFA with 64 to 512 GPUs, eight a node, and half of NCCL's time. Here it is plain
TCP at 400 Mbit/s in a lab, 2 to 8 nodes, and gloo, Open MPI and MPICH in the same run. The picture to be found again: with
servers the time does not depend on the number of nodes, without them it goes toward twice as much. 4 nodes at 1 Gbit/s are
in the tables too, not in the figure.

    sudo python benchmarks/papers/herring_fig10_size_and_nodes.py [--quick] [--part 'n = 8, 100 MB']

Needs root. Takes 9 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from typing import Any

from common import Part, Runs, Script, lined_up, verdict

from shoal.bench import Plan, Report, shown_name
from shoal.bench.sizes import show_bytes, show_seconds

NODES = (2, 4, 8)
SIZES = (65_536, 262_144, 1_048_576, 4_194_304, 25_000_000)
LARGEST = 100_000_000
RATE = "400mbit"
GIGABIT = "n = 4, 1 Gbit/s"

# Whether at 1 Gbit/s, nodes, size → largest ratio to the bound, least ratio to each rival.
TARGETS: dict[tuple[bool, int, int], tuple[float, float | None]] = {
    (False, 8, 25_000_000): (1.04, 1.65),
    (False, 8, LARGEST): (1.02, 1.7),
    (True, 4, 25_000_000): (1.03, None),
    (True, 4, LARGEST): (1.015, None),
}

_COLOURS = {"shoal": "#0b6e99", "gloo": "#d9822b", "openmpi": "#7a9e3a", "mpich": "#a05195"}


def parts(quick: bool) -> list[Part]:
    if quick:
        return [_part(2, "", Plan(sizes=(65_536, 1_048_576), rounds=2)), _part(4, "", Plan(sizes=(65_536,), rounds=2))]
    slower = [
        part
        for nodes in NODES
        for part in (
            _part(nodes, ", to 25 MB", Plan(sizes=SIZES)),
            _part(nodes, ", 100 MB", Plan(sizes=(LARGEST,))),
        )
    ]
    return [*slower, Part(GIGABIT, "nodes=4,servers=4,rate=1gbit", Plan(sizes=(25_000_000, LARGEST)))]


def _part(nodes: int, sizes: str, plan: Plan) -> Part:
    return Part(f"n = {nodes}{sizes}", f"nodes={nodes},servers={nodes},rate={RATE}", plan)


def _drawn(runs: Runs) -> Runs:
    return {name: report for name, report in runs.items() if name != GIGABIT}


def tell(runs: Runs) -> list[str]:
    head = ", as many servers as nodes: median; × bound of that kind; Shoal is so many times as fast"
    lines = [f"Time of one all-reduce at 400 Mbit/s{head}", "", *lined_up(_rows(_drawn(runs)))]
    if GIGABIT in runs:
        lines += ["", "The same at 1 Gbit/s", "", *lined_up(_rows({GIGABIT: runs[GIGABIT]}))]
    return [*lines, "", *_verdicts(runs)]


def _rows(runs: Runs) -> list[list[str]]:
    names = list(dict.fromkeys(name for report in runs.values() for name in report.contestants))
    head = ["n", "size", *(word for name in names for word in (shown_name(name), "× bound", *_faster(name)))]
    return [head, *(_row(report, size, names) for report in runs.values() for size in report.sizes)]


def _faster(name: str) -> list[str]:
    return [] if name == "shoal" else ["Shoal is"]


def _row(report: Report, size: int, names: list[str]) -> list[str]:
    cells = [str(report.nodes), show_bytes(size)]
    for name in names:
        if name not in report.contestants:
            cells += ["", "", *_faster(name)]
            continue
        ratio = report.bound_ratio(name, size)
        cells += [show_seconds(report.result(name, size).seconds), "" if ratio is None else f"{ratio:.3f}"]
        if name != "shoal":
            cells.append(f"{report.speedup(name, size):.2f} ×")
    return cells


def _verdicts(runs: Runs) -> list[str]:
    lines = []
    for name, report in runs.items():
        for size in report.sizes:
            key = (name == GIGABIT, report.nodes, size)
            if key in TARGETS:
                lines += _verdicts_at(report, size, "1 Gbit/s, " if name == GIGABIT else "", *TARGETS[key])
    return lines


def _verdicts_at(report: Report, size: int, links: str, most: float, least: float | None) -> list[str]:
    where = f"n = k = {report.nodes}, {links}{show_bytes(size)}"
    ratio = report.bound_ratio("shoal", size) or 0.0
    lines = [verdict(f"{where}, {ratio:.3f} × the bound, at most {most}", ratio <= most)]
    if least is None:
        return lines
    for name in report.contestants[1:]:
        speedup = report.speedup(name, size)
        words = f"{where}, {speedup:.2f} times as fast as {shown_name(name)}, at least {least}"
        lines.append(verdict(words, speedup >= least))
    return lines


def draw(runs: Runs) -> Any:
    """Time against size for each number of nodes, and the largest size's against the number of nodes."""
    from matplotlib.figure import Figure

    runs = _drawn(runs)
    counts = sorted({report.nodes for report in runs.values()})
    figure = Figure(figsize=(3.6 * (len(counts) + 1), 4.2), layout="constrained")
    panels = figure.subplots(1, len(counts) + 1, squeeze=False)[0]
    for axes, nodes in zip(panels, counts, strict=False):
        _draw_sizes(axes, [report for report in runs.values() if report.nodes == nodes])
        axes.set_title(f"{nodes} nodes, {nodes} servers", fontsize=10)
    times = [result.seconds for report in runs.values() for result in report.results]
    for axes in panels[:-1]:
        axes.set_ylim(0.8 * min(times), 1.25 * max(times))
    _draw_nodes(panels[-1], runs)
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle("Time of one all-reduce, links of 400 Mbit/s", fontsize=11)
    return figure


def _draw_sizes(axes: Any, reports: list[Report]) -> None:
    points = [(report, size) for report in reports for size in report.sizes]
    for name in reports[0].contestants:
        shown = [(size, report.result(name, size).seconds) for report, size in points if name in report.contestants]
        axes.plot(*zip(*shown, strict=True), label=shown_name(name), **_line(name))
    known = [(size, least) for report, size in points if (least := _bound(report, size)) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color="#999999", linestyle=":", label="M/B")
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = [size for _, size in points]
    axes.set_xticks(sizes, [show_bytes(size) for size in sizes], rotation=45, ha="right", fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, position: show_seconds(value))
    axes.minorticks_off()
    axes.grid(color="#e5e5e5", linewidth=0.6)


def _draw_nodes(axes: Any, runs: Runs) -> None:
    size = max(size for report in runs.values() for size in report.sizes)
    reports = [report for report in runs.values() if size in report.sizes]
    for name in reports[0].contestants:
        shown = [(r.nodes, r.result(name, size).seconds) for r in reports if name in r.contestants]
        axes.plot(*zip(*shown, strict=True), **_line(name))
    bounds = [(report.nodes, report.network.bound("shoal", size) or 0.0) for report in reports]
    axes.plot(*zip(*bounds, strict=True), color="#999999", linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_xticks([report.nodes for report in reports])
    axes.set_xlabel("nodes")
    axes.set_title(f"{show_bytes(size)}, seconds", fontsize=10)
    axes.grid(color="#e5e5e5", linewidth=0.6)


def _bound(report: Report, size: int) -> float | None:
    return report.network.bound("shoal", size, report.result("shoal", size).repetitions)


def _line(name: str) -> dict[str, Any]:
    width = 2.2 if name == "shoal" else 1.3
    return {"color": _COLOURS[name], "marker": "o", "markersize": 3.5, "linewidth": width}


if __name__ == "__main__":
    Script(Path(__file__), parts, tell, draw).main()
