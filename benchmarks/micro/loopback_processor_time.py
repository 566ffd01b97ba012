"""Loopback: 4 ranks as 4 nodes and 2 dedicated servers on one machine, all over TCP, beside gloo.

Nothing has a link's speed here, so this is what averaging costs the processors. Targets: 25 MB no slower than gloo; and processor
seconds for a byte that crosses TCP no more than gloo's. (All-reduce of M bytes among n ranks sends 2(n-1)M in a ring, and 2nM
by way of servers, less what stays on a machine.)

    python benchmarks/micro/loopback_processor_time.py [--quick] [--part 'n = 4']

Takes a minute on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import Part, Runs, Script, beside_rivals, lined_up, verdict

from shoal.bench import Plan, Report
from shoal.bench.sizes import show_bytes

WHERE = "n=4,servers=2"
MIB = 1024 * 1024
SIZES = (MIB, 4 * MIB, 25_000_000, 100_000_000)
TARGET = 25_000_000
ROUNDS = 21


def parts(quick: bool) -> list[Part]:
    contestants = ("shoal", "gloo")
    plan = Plan((MIB, TARGET), 2, contestants) if quick else Plan(SIZES, ROUNDS, contestants)
    return [Part("n = 4", WHERE, plan)]


def tell(runs: Runs) -> list[str]:
    lines = ["Time of one all-reduce over loopback, 4 ranks as nodes, 2 dedicated servers: median", ""]
    for report in runs.values():
        lines += [
            *lined_up(beside_rivals(report)),
            "",
            "Processor seconds for 10^9 bytes sent over TCP, headers included",
            "",
        ]
        rows = [["size", "Shoal", "gloo"]]
        rows += [
            [show_bytes(size), *(f"{_per_byte(report, name, size):.3f}" for name in ("shoal", "gloo"))]
            for size in report.sizes
        ]
        lines += [*lined_up(rows), "", *_verdicts(report), ""]
    return lines[:-1]


def _per_byte(report: Report, contestant: str, size: int) -> float:
    result = report.result(contestant, size)
    return result.cpu_per_gb * size / (result.wire_bytes or 1.0)


def _verdicts(report: Report) -> list[str]:
    speedup = report.speedup("gloo", TARGET)
    ours, theirs = (_per_byte(report, name, TARGET) for name in ("shoal", "gloo"))
    where = show_bytes(TARGET)
    return [
        verdict(f"{where}, {speedup:.2f} times as fast as gloo, at least 1", speedup >= 1),
        verdict(f"{where}, {ours / theirs:.2f} of gloo's processor time for a byte on TCP, at most 1", ours <= theirs),
    ]


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
