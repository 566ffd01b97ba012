"""Unequal links: one server, or one node, whose link has half the rate of all others, 25 and 100 MB at 400 Mbit/s.

Nobody tells Shoal: ``init`` measures every host's link, and shares follow. Target: at most 1.10 × the bound for those
rates (``shoal.bench.bound``). gloo takes turns with it.

    sudo python benchmarks/micro/unequal_links.py [--quick] [--part 'one server at half the rate']

Needs root. Takes 6 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import Part, Runs, Script, beside_rivals, lined_up, verdict

from shoal.bench import Plan
from shoal.bench.sizes import show_bytes

NODES = SERVERS = 8
SLOW_NODE, SLOW_SERVER = 3, NODES + 3
SIZES = (25_000_000, 100_000_000)
MOST = 1.10


def parts(quick: bool) -> list[Part]:
    if quick:
        lab = "nodes=2,servers=2,rate=400mbit,slow=2:200mbit"
        return [Part("one server at half the rate", lab, Plan((1_000_000,), 2, ("shoal", "gloo")))]
    return [
        _part("one server at half the rate", SERVERS, SLOW_SERVER),
        _part("one node at half the rate", SERVERS, SLOW_NODE),
        _part("one node at half the rate, no servers", 0, SLOW_NODE),
    ]


def _part(name: str, servers: int, slow: int) -> Part:
    lab = f"nodes={NODES},servers={servers},rate=400mbit,slow={slow}:200mbit"
    return Part(name, lab, Plan(SIZES, contestants=("shoal", "gloo")))


def tell(runs: Runs) -> list[str]:
    lines, verdicts = [], []
    for name, report in runs.items():
        lines += [f"{name}, n = {report.nodes}, k = {report.servers}", "", *lined_up(beside_rivals(report)), ""]
        for size in report.sizes:
            ratio = report.bound_ratio("shoal", size) or 0.0
            words = f"{name}, {show_bytes(size)}, {ratio:.3f} × the bound, at most {MOST:.2f}"
            verdicts.append(verdict(words, ratio <= MOST))
    return [*lines, *verdicts]


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
