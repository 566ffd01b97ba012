"""Arrays of 64 KiB to 2 MiB, one at a time or many at once, on links that hardly let anything through for nothing.

With dedicated servers a short operation is all beginning and end: contributions go while no result comes, then results
come while no contribution goes. Smaller segments let both go at once (``least_segment``; docs/decisions/short-operations.md). The
links of a lab that let 128 KiB through for nothing hide what is lost: so here they let 32 KiB through, and are so
slow that one machine's cores can keep up with all hosts. Two parts have the usual links of 400 Mbit/s instead, where
hosts share 2 cores: smaller segments cost what they cost there. Of operations that are open at once, one fills the
links while another begins or ends.

Without dedicated servers the same links tell what the ring's 2(n-1) steps cost.

    sudo python benchmarks/micro/short_operation_segments.py [--quick] [--part 'n = k = 4, 200 Mbit/s']

Needs root. Takes 6 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import RING, WITH_RING, Part, Runs, Script, lined_up

from shoal.bench import Plan, Report, Variant, shown_name, variant_name
from shoal.bench.sizes import show_bytes, show_seconds

SIZES = tuple(65_536 * 2**power for power in range(6))
RING_SIZES = tuple(32_768 * 2**power for power in range(5))
ROUNDS = 7

# An array in pieces that are all submitted at once.
ARRAY = 4 * 1_048_576
PIECES = (65_536, 262_144, 1_048_576)

# A frame of 16 KiB and its headers fit into one piece of 20 KiB, and that into what links let through at once.
_WIRE = "burst=32kb,offload=20kb"

_ALIKE = "with equal segments"


def parts(quick: bool) -> list[Part]:
    alike = {_ALIKE: Variant(limits={"least_segment": 0})}
    if quick:
        plan = Plan((262_144,), 2, ("shoal", "gloo"), variants=alike)
        return [Part("n = k = 2", f"nodes=2,servers=2,rate=200mbit,{_WIRE}", plan)]
    served = Plan(SIZES, ROUNDS, ("shoal", "gloo"), variants=alike)
    unserved = Plan(RING_SIZES, ROUNDS, ("shoal", "gloo"), variants=WITH_RING)
    return [
        Part("n = k = 4, 200 Mbit/s", f"nodes=4,servers=4,rate=200mbit,{_WIRE}", served),
        Part("n = k = 8, 100 Mbit/s", f"nodes=8,servers=8,rate=100mbit,{_WIRE}", served),
        Part("n = k = 8, 400 Mbit/s, 128 KiB for nothing", "nodes=8,servers=8,rate=400mbit", served),
        Part("n = k = 4, 200 Mbit/s, at once", f"nodes=4,servers=4,rate=200mbit,{_WIRE}", _at_once()),
        Part("n = k = 8, 400 Mbit/s, at once, 128 KiB for nothing", "nodes=8,servers=8,rate=400mbit", _at_once()),
        Part("n = 4, k = 0, 200 Mbit/s", f"nodes=4,rate=200mbit,{_WIRE}", unserved),
        Part("n = 8, k = 0, 100 Mbit/s", f"nodes=8,rate=100mbit,{_WIRE}", unserved),
    ]


def _at_once() -> Plan:
    pairs = ((piece, limits) for piece in PIECES for limits in ({}, {"least_segment": 0}))
    variants = {_piece_name(piece, not limits): Variant(limits=limits, window=piece) for piece, limits in pairs}
    return Plan((ARRAY,), ROUNDS, ("shoal",), variants=variants)


def _piece_name(piece: int, smaller: bool) -> str:
    return f"by {show_bytes(piece)}" + ("" if smaller else f" {_ALIKE}")


def tell(runs: Runs) -> list[str]:
    lines = ["Median time of one all-reduce, and that time as a multiple of the bound", ""]
    for name, report in runs.items():
        at_once = ARRAY in report.sizes
        lines += [name, *lined_up(_rows_at_once(report) if at_once else _rows(report)), ""]
    return lines


def _rows_at_once(report: Report) -> list[list[str]]:
    rows = [["operations at once", "Shoal", "× bound", _ALIKE, "× bound", "of its time"]]
    for piece in PIECES:
        names = [variant_name(_piece_name(piece, smaller)) for smaller in (True, False)]
        row = [f"{ARRAY // piece} of {show_bytes(piece)}"]
        row += [word for name in names for word in _time(report, name, ARRAY)]
        share = report.result(names[0], ARRAY).seconds / report.result(names[1], ARRAY).seconds
        rows.append([*row, f"{share:.3f}"])
    return rows


def _rows(report: Report) -> list[list[str]]:
    others = [name for name in report.contestants if name != "shoal"]
    variant = next(name for name in others if name in (variant_name(_ALIKE), RING))
    rows = [["size", *(word for name in report.contestants for word in (shown_name(name), "× bound")), "of its time"]]
    for size in report.sizes:
        times = [word for name in report.contestants for word in _time(report, name, size)]
        rows.append([show_bytes(size), *times, f"{1 / report.speedup(variant, size):.3f}"])
    return rows


def _time(report: Report, name: str, size: int) -> list[str]:
    ratio = report.bound_ratio(name, size)
    return [show_seconds(report.result(name, size).seconds), "" if ratio is None else f"{ratio:.3f}"]


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
