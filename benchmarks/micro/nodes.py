"""Nodes of several ranks: 2 hosts with 4 ranks each and 2 servers, on links of 1 Gbit/s. A node's arrays cross its link once.

"Shoal shared" has its arrays in the memory that the ranks of a host share, as gradients of shoal.torch have; Shoal has ordinary
arrays. Targets, for both: 25 MB and 100 MB take at most 1.05 times M/B, B being one TCP flow between the hosts, and each host sends
M bytes for it within 3 %, not 4 M.

    sudo python benchmarks/micro/nodes.py [--quick]

Needs root. Takes 4 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import Part, Runs, Script, beside_rivals, lined_up, verdict

from shoal.bench import Plan, Report, Variant, shown_name, variant_name
from shoal.bench.sizes import show_bytes

NODES, RANKS, SERVERS = 2, 4, 2
SIZES = (25_000_000, 100_000_000)
ROUNDS = 11
AT_MOST = 1.05
WITHIN = 0.03
SHARED = "shared"


def parts(quick: bool) -> list[Part]:
    sizes, rounds = (SIZES[:1], 2) if quick else (SIZES, ROUNDS)
    plan = Plan(sizes=sizes, rounds=rounds, variants={SHARED: Variant(shared=True)})
    return [
        Part(f"{NODES} nodes of {RANKS} ranks", f"nodes={NODES},ranks={RANKS},servers={SERVERS},rate=1gbit", plan),
    ]


def tell(runs: Runs) -> list[str]:
    lines = ["Time of an all-reduce of float32 among nodes whose ranks share memory: median", ""]
    for report in runs.values():
        lines += [*lined_up(beside_rivals(report)), ""]
        for size in report.sizes:
            for ours in ("shoal", variant_name(SHARED)):
                lines += _verdicts(report, ours, size)
    return lines


def _verdicts(report: Report, ours: str, size: int) -> list[str]:
    ratio, sent = report.bound_ratio(ours, size), report.result(ours, size).wire_bytes
    assert ratio is not None, "the lab's links have a rate"
    assert sent is not None, "the lab counts"
    each = sent / (NODES + SERVERS) / size
    what = f"{shown_name(ours)}, {show_bytes(size)}"
    return [
        verdict(f"{what} in at most {AT_MOST} times the bound, {ratio:.3f} ×", ratio <= AT_MOST),
        verdict(f"{what}: each host sends M within {WITHIN:.0%}, {each:.3f} × M", abs(each - 1) <= WITHIN),
    ]


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
