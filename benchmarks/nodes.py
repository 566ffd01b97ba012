"""Nodes of several ranks: 2 hosts with 4 ranks each and 2 servers, on links of 1 Gbit/s. A node's arrays cross its link once.

Targets: 25 MB and 100 MB take at most 1.05 times M/B, B being one TCP flow between the hosts, and each host sends M bytes for it
within 3 %, not 4 M.

    sudo python benchmarks/nodes.py [--quick]

Needs root. Takes 3 minutes on 2 cores.
"""

from pathlib import Path

from common import Part, Runs, Script, beside_rivals, lined_up, verdict

from shoal.bench import Plan, Report
from shoal.bench.sizes import show_bytes

NODES, RANKS, SERVERS = 2, 4, 2
SIZES = (25_000_000, 100_000_000)
ROUNDS = 11
AT_MOST = 1.05
WITHIN = 0.03


def parts(quick: bool) -> list[Part]:
    plan = Plan(sizes=SIZES[:1], rounds=2) if quick else Plan(sizes=SIZES, rounds=ROUNDS)
    return [
        Part(f"{NODES} nodes of {RANKS} ranks", f"nodes={NODES},ranks={RANKS},servers={SERVERS},rate=1gbit", plan),
    ]


def tell(runs: Runs) -> list[str]:
    lines = ["Time of an all-reduce of float32 among nodes whose ranks share memory: median", ""]
    for report in runs.values():
        lines += [*lined_up(beside_rivals(report)), ""]
        for size in report.sizes:
            lines += _verdicts(report, size)
    return lines


def _verdicts(report: Report, size: int) -> list[str]:
    ratio, sent = report.bound_ratio("shoal", size), report.result("shoal", size).wire_bytes
    assert ratio is not None, "the lab's links have a rate"
    assert sent is not None, "the lab counts"
    each = sent / (NODES + SERVERS) / size
    return [
        verdict(f"{show_bytes(size)} in at most {AT_MOST} times the bound, {ratio:.3f} ×", ratio <= AT_MOST),
        verdict(f"{show_bytes(size)}: each host sends M within {WITHIN:.0%}, {each:.3f} × M", abs(each - 1) <= WITHIN),
    ]


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
