"""Small all-reduces, where the latency counts: 1 KiB to 1 MiB over links as fast as the machine, 8 nodes, 0 and 2 servers.

Targets: faster than gloo at every size, and 4 KiB in at most half of gloo's time; without dedicated servers, the servers in
the nodes are faster than Shoal's own ring below 1 MB (compared from 32 KiB on: up to `small` bytes, 16 KiB at most, an array
goes to one server, ring or not). 8 or 10 hosts share the machine's cores, so this is about what an operation costs the
processors, and how often somebody has to be woken up: servers do it in 2 hops, the ring in 2(n-1). Where links are so slow
that they, or their shapers' timers, are what counts, any_servers.py compares the two.

    sudo python benchmarks/micro/small_sizes.py [--quick] [--part 'k = 2']

Needs root. Takes 4 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import RING, WITH_RING, Part, Runs, Script, beside_rivals, lined_up, verdict

from shoal.bench import Plan, Report
from shoal.bench.sizes import show_bytes

NODES = 8
SERVERS = (0, 2)
SIZES = tuple(1024 * 2**power for power in range(11))
ROUNDS = 11
HALVED = 4096
RING_SIZES = tuple(size for size in SIZES if 32_768 <= size < 1_000_000)


def parts(quick: bool) -> list[Part]:
    def plan(servers: int) -> Plan:
        variants = {} if servers else WITH_RING
        if quick:
            return Plan(sizes=(1024, HALVED, 65_536), rounds=2, variants=variants)
        return Plan(sizes=SIZES, rounds=ROUNDS, variants=variants)

    return [Part(f"k = {servers}", f"nodes={NODES},servers={servers}", plan(servers)) for servers in SERVERS]


def tell(runs: Runs) -> list[str]:
    lines = [f"Time of one small all-reduce, {NODES} nodes, k dedicated servers, unshaped links: median", ""]
    for name, report in runs.items():
        lines += [name, *lined_up(beside_rivals(report)), ""]
    for name, report in runs.items():
        lines += _verdicts(name, report)
    return lines


def _verdicts(name: str, report: Report) -> list[str]:
    slowest = min(report.sizes, key=lambda size: report.speedup("gloo", size))
    least = report.speedup("gloo", slowest)
    halved = report.speedup("gloo", HALVED)
    lines = [
        verdict(f"{name}, faster than gloo at every size, least {least:.2f} × at {show_bytes(slowest)}", least > 1),
        verdict(f"{name}, {show_bytes(HALVED)} at most half of gloo's time, {1 / halved:.2f} of it", halved >= 2),
    ]
    if RING in report.contestants:
        shares = {size: 1 / report.speedup(RING, size) for size in report.sizes if size in RING_SIZES}
        size = max(shares, key=shares.__getitem__)
        words = f"{name}, faster than the ring below 1 MB, most {shares[size]:.2f} of its time at {show_bytes(size)}"
        lines.append(verdict(words, shares[size] < 1))
    return lines


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
