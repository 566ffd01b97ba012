"""How long small all-reduces take with a processor a rank: 8 B to 64 KiB, 2, 4 and 8 ranks, beside gloo.

    python benchmarks/gpu/latency.py

Ranks of one machine, which share memory with Shoal, and the same ranks as nodes, over loopback. Without a GPU.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import os

import stage
from common import run_at
from engine import PinnedPlace

from shoal.bench import Plan, Report, shown_name
from shoal.bench.conductor import BenchError
from shoal.bench.sizes import show_bytes

KIB = 1024
SIZES = (8, KIB, 8 * KIB, 64 * KIB)
RANKS = (2, 4, 8)


def measure(ranks: int, one_machine: bool) -> Report:
    """Raises BenchError."""
    sizes = SIZES[:2] if stage.rehearses() else SIZES
    plan = Plan(sizes=sizes, rounds=2 if stage.rehearses() else 5, contestants=("shoal", "gloo"))
    return run_at(PinnedPlace(ranks, one_machine=one_machine), plan)


def main() -> int:
    record = stage.Record()
    kept, status = {}, 0
    processors = len(os.sched_getaffinity(0))
    for one_machine in (True, False):
        for ranks in (2,) if stage.rehearses() else RANKS:
            name = f"{ranks} {'ranks of one machine' if one_machine else 'nodes'}"
            if ranks > processors:
                record.say(f"{name}: not measured: there are {processors} processors")
                continue
            try:
                report = measure(ranks, one_machine)
            except (BenchError, OSError) as error:
                status = 1
                print(error)
                record.say(f"{name}: FAILED: {str(error).strip().splitlines()[-1]}")
                continue
            kept[name] = json.loads(report.to_json())
            record.keep("reports", kept)
            cells = [
                f"{show_bytes(size)} "
                + " / ".join(f"{1e6 * report.result(one, size).seconds:.0f}" for one in report.contestants)
                for size in report.sizes
            ]
            record.say(f"{name}, µs, {' / '.join(map(shown_name, report.contestants))}: {'; '.join(cells)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
