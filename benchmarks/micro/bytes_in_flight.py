"""How much may be in flight toward a port: what ``init`` chooses against a little more, half, and twice as much, by turns.

8 nodes and 8 servers at 400 Mbit/s. What is chosen is 240 KiB, so that it fits into a queue of 256 KiB with all headers; a
little more is 256 KiB, which does not. So what counts here, beside the time, is what is dropped, and what processors spend on
it: a packet that is lost costs a link its congestion window whenever it is idle, for 10 s. docs/decisions/windows.md.

    sudo python benchmarks/micro/bytes_in_flight.py [--quick] [--part 'reno, 256 KB']

Needs root. Takes 7 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import Part, Runs, Script, lined_up

from shoal.bench import Plan, Report, Variant
from shoal.bench.sizes import show_bytes, show_seconds

NODES = 8
SHAPE = f"nodes={NODES},servers={NODES},rate=400mbit"
# By the part's name: the hosts' congestion control and the depth of queues, as the lab takes them.
PLACES = {
    "reno, 256 KB": "cc=reno,queue=256kb",
    "bbr, 256 KB": "cc=bbr,queue=256kb",
    "bbr, 4 MB": "cc=bbr,queue=4mb",
    "reno, 64 KB": "cc=reno,queue=64kb",
}
SHALLOW = "64 KB"
SIZE, LARGE = 25_000_000, 100_000_000
ROUNDS = 7
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
    # Two segments a window, as ``init`` has them.
    limits = [{"segment": total // nodes // 2, "credit": total // nodes} for total in IN_FLIGHT]
    variants = {_in_flight(window["credit"], nodes): Variant(limits=window) for window in limits}
    return Plan(sizes, rounds, ("shoal",), variants=variants)


def _in_flight(credit: int, nodes: int) -> str:
    return f"{show_bytes(credit * nodes)} in flight"


def tell(runs: Runs) -> list[str]:
    lines = ["Time of one all-reduce by what may be in flight toward a port, and the packets that links dropped", ""]
    rows = [["", "size", "", "median", "× bound", "CPU s/GB", "drops"]]
    for name, report in runs.items():
        rows += [_row(name, report, size, one) for size in report.sizes for one in report.contestants]
    return [*lines, *lined_up(rows)]


def _row(name: str, report: Report, size: int, contestant: str) -> list[str]:
    result = report.result(contestant, size)
    chosen = "chosen: " if contestant == "shoal" else ""
    return [
        name,
        show_bytes(size),
        chosen + _in_flight(report.limits[contestant]["credit"], report.nodes),
        show_seconds(result.seconds),
        f"{report.bound_ratio(contestant, size) or 0.0:.3f}",
        f"{result.cpu_per_gb:.1f}",
        str(result.drops),
    ]


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
