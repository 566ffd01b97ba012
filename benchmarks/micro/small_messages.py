"""Small all-reduces with a core a rank: 64 B to 64 KiB between 2 ranks that share a machine's memory, and over TCP.

Beside Open MPI, whose ranks wait by looking again and again, and gloo. With more ranks than cores: small_sizes.py and inside_node.py.
Targets, from Python: in shared memory at most 2 times Open MPI's time; over TCP, without servers, at most 1.3 times.

    python benchmarks/micro/small_messages.py [--quick] [--part TCP]

Takes 2 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import Part, Runs, Script, beside_rivals, lined_up, verdict

from shoal.bench import Plan
from shoal.bench.sizes import show_bytes

SIZES = tuple(64 * 4**power for power in range(6))
ROUNDS, QUICK_ROUNDS = 21, 2
RIVAL = "openmpi"
CONTESTANTS = ("shoal", RIVAL, "gloo")
PLACES = {"shared memory": "n=2,nodes=1", "TCP": "n=2"}
AT_MOST = {"shared memory": 2.0, "TCP": 1.3}


def parts(quick: bool) -> list[Part]:
    plan = Plan(SIZES[::2], QUICK_ROUNDS, CONTESTANTS) if quick else Plan(SIZES, ROUNDS, CONTESTANTS)
    return [Part(name, place, plan) for name, place in PLACES.items()]


def tell(runs: Runs) -> list[str]:
    lines = ["Time of one small all-reduce from Python, 2 ranks with a core each: median", ""]
    for name, report in runs.items():
        lines += [name, *lined_up(beside_rivals(report)), ""]
    for name, report in runs.items():
        slowest = min(report.sizes, key=lambda size: report.speedup(RIVAL, size))
        most = 1 / report.speedup(RIVAL, slowest)
        words = f"{name}, at most {AT_MOST[name]:g} times Open MPI's time, most {most:.2f} at {show_bytes(slowest)}"
        lines.append(verdict(words, most <= AT_MOST[name]))
    return lines


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
