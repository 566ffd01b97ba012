"""A report as text: a table for people, with what a figure needs beside it to be believed."""

from typing import Any

from shoal.bench.bound import allreduce_factor, server_factor
from shoal.bench.naming import SHOAL, family, shown_name
from shoal.bench.report import Report, Result
from shoal.bench.sizes import show_bytes, show_rate, show_seconds
from shoal.errors import ConfigurationError

HOW_TO_INSTALL = "pip install 'shoal[bench]'"

COLUMNS = (
    "size",
    "contestant",
    "median",
    "fastest to slowest",
    "bandwidth",
    "× bound",
    "Shoal is",
    "CPU s/GB",
    "machine s/GB",
    "on the wire",
    "drops",
    "our share",
    "others' share",
)


def row(report: Report, result: Result) -> list[str]:
    """The cells of one result, in the order of COLUMNS; "" for what does not exist."""
    ratio = report.bound_ratio(result.contestant, result.size)
    rival = result.contestant != SHOAL and SHOAL in report.contestants
    return [
        show_bytes(result.size),
        shown_name(result.contestant),
        show_seconds(result.seconds),
        f"{show_seconds(result.fastest)} to {show_seconds(result.slowest)}",
        show_rate(result.bandwidth),
        "" if ratio is None else f"{ratio:.3f}",
        f"{report.speedup(result.contestant, result.size):.2f} × as fast" if rival else "",
        _number(result.cpu_per_gb),
        "" if result.busy_per_gb is None else _number(result.busy_per_gb),
        "" if result.wire_bytes is None else f"{result.wire_bytes / result.size:.2f} × size",
        "" if result.drops is None else str(result.drops),
        *_shares(report, result),
    ]


def shown_columns(report: Report) -> list[int]:
    """The columns that say anything about this report, as indices of COLUMNS."""
    rows = [row(report, result) for result in report.results]
    return [index for index in range(len(COLUMNS)) if any(cells[index] for cells in rows)]


def notes(report: Report) -> list[str]:
    """The lines above and below the table: where, how fast the links are, the bound, versions, the machine."""
    network = report.network
    shape = f"ranks: {report.ranks}, nodes: {report.nodes}, dedicated servers: {report.servers}"
    lines = [f"{report.title} (sum of float32), {shape}"]
    if network.rate:
        lines.append(f"B, one TCP flow between two hosts: {show_rate(network.rate)} of payload")
    if network.shaped:
        unequal = len({*network.node_factors, *network.server_factors}) > 1
        ours, theirs = server_factor(report.nodes, report.servers), allreduce_factor(report.nodes)
        least = "solved for the links' speeds" if unequal else f"Shoal {ours:.3f}, rivals {theirs:.3f}, each × M/B"
        lines.append(f"bound: {least}{_free(network.burst)}")
    else:
        lines.append("bound: none, since processors and not links decide here")
    # The version of a variant of Shoal is Shoal's. A rival's tells its settings too.
    lines += [
        f"{shown_name(name)}: {version}"
        for name, version in report.versions.items()
        if name == family(name) or family(name) != SHOAL
    ]
    lines += [f"{shown_name(name)} took no part: {why}" for name, why in report.missing.items()]
    lines += [f"{name}: {value}" for name, value in report.facts.items()]
    return lines


def _shares(report: Report, result: Result) -> tuple[str, str]:
    """Of the busiest link: ours, and those of the other flows, where there are any."""
    mean, least, ratio = result.others_mean, result.others_least, report.bound_ratio(result.contestant, result.size)
    if mean is None or least is None:
        return "", ""
    rate = report.network.rate
    ours = "" if ratio is None else f"{1 / ratio:.3f}"
    return ours, f"{mean / rate:.3f}, one {least / rate:.3f}"


def _free(burst: int) -> str:
    return f"; a link lets {show_bytes(burst)} through for nothing in each turn" if burst else ""


def print_report(report: Report, file: Any = None) -> None:
    """Prints table and notes, to standard output or another text file. Raises ConfigurationError without rich."""
    print_table(report, file)
    print(file=file)
    for line in notes(report):
        print(line, file=file)


def print_table(report: Report, file: Any = None) -> None:
    """Prints the table alone. Raises ConfigurationError without rich."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        raise ConfigurationError(f"the table is drawn by rich, which is not installed: {HOW_TO_INSTALL}") from None
    shown = shown_columns(report)
    table = Table(box=None, pad_edge=False)
    for index in shown:
        table.add_column(COLUMNS[index], justify="left" if index == 1 else "right", no_wrap=True)
    before = None
    for result in report.results:
        cells = row(report, result)
        if before is not None and before != result.size:
            table.add_section()
        if before == result.size:
            cells[0] = ""
        table.add_row(*(cells[index] for index in shown), style="bold" if result.contestant == SHOAL else None)
        before = result.size
    # A pipe has no width; cut cells would be worse than long lines.
    console = Console(file=file, highlight=False)
    if not console.is_terminal or console.width < 140:
        console.width = 170
    console.print(table)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
