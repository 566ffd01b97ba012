"""How much may be in flight toward a port: what ``init`` chooses against a little more, half, and twice as much, by turns.

8 nodes and 8 servers at 400 Mbit/s. What is chosen is 240 KiB, so that it fits into a queue of 256 KiB with all headers; a
little more is 256 KiB, which does not. So what counts here, beside the time, is what is dropped, and what processors spend on
it: a packet that is lost costs a link its congestion window whenever it is idle, for 10 s. docs/decisions/windows.md.

    sudo python benchmarks/in_flight.py [--quick] [--part 'reno, 256 KB']

Needs root. Takes 6 minutes on 2 cores.
"""

from pathlib import Path

from common import Part, Runs, Script, lined_up

from shoal.bench import Plan, Report, Variant, shown_name, variant_name
from shoal.bench.sizes import show_bytes, show_seconds

SHAPE = "nodes=8,servers=8,rate=400mbit"
# (the hosts' congestion control, the depth of queues): the part's name, and what the lab is told.
PLACES = {
    "reno, 256 KB": "cc=reno,queue=256kb",
    "bbr, 256 KB": "cc=bbr,queue=256kb",
    "bbr, 4 MB": "cc=bbr,queue=4mb",
    "reno, 64 KB": "cc=reno,queue=64kb",
}
SHALLOW = "64 KB"
SIZE, LARGE = 25_000_000, 100_000_000
ROUNDS = 7
NODES = 8
KIB = 1024
IN_FLIGHT = (128 * KIB, 256 * KIB, 512 * KIB)


def parts(quick: bool) -> list[Part]:
    if quick:
        return [Part("reno, 256 KB", "nodes=2,servers=2,rate=400mbit,cc=reno,queue=256kb", _plan((1_000_000,), 2, 2))]
    return [
        Part(name, f"{SHAPE},{place}", _plan((SIZE,) if name.endswith(SHALLOW) else (SIZE, LARGE), ROUNDS, NODES))
        for name, place in PLACES.items()
    ]


def _plan(sizes: tuple[int, ...], rounds: int, nodes: int) -> Plan:
    variants = {_in_flight(total): _window(total // nodes) for total in IN_FLIGHT}
    return Plan(sizes, rounds, ("shoal",), variants=variants)


def _in_flight(total: int) -> str:
    return f"{show_bytes(total)} in flight"


def _window(credit: int) -> Variant:
    """Two segments, as ``init`` has them."""
    return Variant(limits={"segment": credit // 2, "credit": credit})


def tell(runs: Runs) -> list[str]:
    lines = ["Time of one all-reduce by what may be in flight toward a port, and the packets that links dropped", ""]
    rows = [["", "size", "", "median", "× bound", "CPU s/GB", "drops"]]
    for name, report in runs.items():
        for size in report.sizes:
            rows += [_row(name, report, size, contestant) for contestant in ("shoal", *map(variant_name, _names()))]
    return [*lines, *lined_up(rows)]


def _names() -> list[str]:
    return [_in_flight(total) for total in IN_FLIGHT]


def _row(name: str, report: Report, size: int, contestant: str) -> list[str]:
    result = report.result(contestant, size)
    chosen = f"chosen: {show_bytes(report.limits['shoal']['credit'] * report.nodes)}"
    return [
        name,
        show_bytes(size),
        chosen if contestant == "shoal" else shown_name(contestant).partition(" ")[2],
        show_seconds(result.seconds),
        f"{report.bound_ratio(contestant, size) or 0.0:.3f}",
        f"{result.cpu_per_gb:.1f}",
        str(result.drops),
    ]


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
