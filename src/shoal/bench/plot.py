"""A report as a figure: a PNG, and beside it an HTML page that needs nothing but itself.

Left: the median time of an all-reduce by size, with the least time that the links allow. Right: what every contestant
makes of the links, or, where links bound nothing, how many times as fast as each rival Shoal is.
"""

import html
import io
from pathlib import Path
from typing import Any

from shoal.bench.naming import shown_name
from shoal.bench.report import Report, Result
from shoal.bench.sizes import show_bytes, show_seconds
from shoal.bench.table import COLUMNS, HOW_TO_INSTALL, notes, row, shown_columns
from shoal.errors import ConfigurationError

_COLOURS = {
    "shoal": "#0b6e99",
    "gloo": "#d9822b",
    "gloo lazy": "#e8b37e",
    "gloo wide": "#9c5410",
    "openmpi": "#7a9e3a",
    "openmpi ucx": "#4b6621",
    "mpich": "#a05195",
    "horovod": "#8c6d46",
    "nccl": "#4d4d4d",
}
_BOUND_COLOUR = "#999999"
_INCHES = (11.0, 4.4)
_DOTS_PER_INCH = 150

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15em .8em; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid #888; } tr.first td { border-top: 1px solid #ddd; } tr.shoal td { font-weight: 600; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; }
"""


def plot(report: Report, file: Path) -> list[Path]:
    """Writes ``file`` with the suffix .png, and the page with .html; both paths. Raises ConfigurationError without
    matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError(f"figures are drawn by matplotlib, which is not installed: {HOW_TO_INSTALL}") from None
    png, page = file.with_suffix(".png"), file.with_suffix(".html")
    # Text stays text in the page.
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 10, "svg.hashsalt": "shoal"}):
        figure = _draw(report)
        figure.savefig(png, dpi=_DOTS_PER_INCH)
        vector = io.StringIO()
        figure.savefig(vector, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    page.write_text(_page(report, vector.getvalue()))
    return [png, page]


def _draw(report: Report) -> Any:
    # Not pyplot: it would look for a display and keep the figure.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_times(left, report)
    if report.network.shaped:
        _draw_bound_ratios(right, report)
    else:
        _draw_speedups(right, report)
    figure.suptitle(_title(report), fontsize=11)
    return figure


def _draw_times(axes: Any, report: Report) -> None:
    for name in report.contestants:
        results = _of(report, name)
        sizes = [result.size for result in results]
        times = [result.seconds for result in results]
        spread = [
            [result.seconds - result.fastest for result in results],
            [result.slowest - result.seconds for result in results],
        ]
        axes.errorbar(sizes, times, yerr=spread, label=shown_name(name), capsize=2, **_line(name))
    shown = []
    for result in _of(report, "shoal"):
        least = report.network.bound("shoal", result.size, result.repetitions)
        if least is not None:
            shown.append((result.size, least))
    if shown:
        axes.plot(*zip(*shown, strict=True), color=_BOUND_COLOUR, linestyle=":", label="least for these links")
    axes.set_title("time of one all-reduce: median, fastest to slowest", fontsize=10)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, position: show_seconds(value))
    _finish(axes, report)


def _draw_bound_ratios(axes: Any, report: Report) -> None:
    for name in report.contestants:
        points = [(size, report.bound_ratio(name, size)) for size in report.sizes]
        shown = [(size, ratio) for size, ratio in points if ratio is not None]
        if shown:
            sizes, ratios = zip(*shown, strict=True)
            axes.plot(sizes, [1 / ratio for ratio in ratios], label=shown_name(name), **_line(name))
    axes.axhline(1.0, color=_BOUND_COLOUR, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_title("least time for that kind of all-reduce / median", fontsize=10)
    axes.yaxis.set_major_formatter(lambda value, position: f"{100 * value:.0f} %")
    _finish(axes, report)


def _draw_speedups(axes: Any, report: Report) -> None:
    if "shoal" in report.contestants:
        for name in report.contestants:
            if name != "shoal":
                ratios = [report.speedup(name, size) for size in report.sizes]
                axes.plot(report.sizes, ratios, label=shown_name(name), **_line(name))
    axes.axhline(1.0, color=_BOUND_COLOUR, linestyle=":")
    axes.set_yscale("log")
    axes.set_title("Shoal is so many times as fast as", fontsize=10)
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g} ×")
    _finish(axes, report)


def _finish(axes: Any, report: Report) -> None:
    axes.set_xscale("log")
    axes.set_xticks(report.sizes, [show_bytes(size) for size in report.sizes], rotation=45, ha="right", fontsize=8)
    axes.minorticks_off()
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def _line(name: str) -> dict[str, Any]:
    width = 2.2 if name == "shoal" else 1.3
    return {"color": _COLOURS.get(name), "marker": "o", "markersize": 3.5, "linewidth": width}


def _of(report: Report, contestant: str) -> list[Result]:
    return [result for result in report.results if result.contestant == contestant]


def _title(report: Report) -> str:
    return f"{report.title}: {report.facts.get('place', f'{report.ranks} ranks')}"


def _page(report: Report, vector: str) -> str:
    title = html.escape(_title(report))
    head = "".join(f"<th>{html.escape(COLUMNS[index])}</th>" for index in shown_columns(report))
    # The declaration of XML before it has no place inside HTML.
    drawing = vector[vector.index("<svg") :]
    facts = "".join(f"<li>{html.escape(line)}</li>" for line in notes(report))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>\n{drawing}\n"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{_rows(report)}</tbody></table></div>\n'
        f"<ul>{facts}</ul></body></html>\n"
    )


def _rows(report: Report) -> str:
    lines, before, shown = [], -1, shown_columns(report)
    for result in report.results:
        kinds = [
            kind for kind, is_so in (("first", result.size != before), ("shoal", result.contestant == "shoal")) if is_so
        ]
        values = row(report, result)
        cells = "".join(f"<td>{html.escape(values[index])}</td>" for index in shown)
        lines.append(f'<tr class="{" ".join(kinds)}">{cells}</tr>\n')
        before = result.size
    return "".join(lines)
