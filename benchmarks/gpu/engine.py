"""What the engine moves without a GPU and without a network that bounds it: 100 MB summed over loopback, in Gbit/s.

    python benchmarks/gpu/engine.py

Every node and every server has processors of its own, as many as there are for each. Both have the threads that they
choose, and in two cases 1, 2 and 4: lanes of a node and of a server that are divided among so many
(docs/decisions/channels.md).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import os
from collections.abc import Mapping, Sequence

import stage
from common import run_at

from shoal.bench import LocalPlace, Plan, Report, Variant, shown_name
from shoal.bench.conductor import BenchError
from shoal.bench.places.local import LocalProcess
from shoal.bench.watch import Watch

MB = 1_000_000
# Nodes, dedicated servers, threads of each that are tried besides.
CASES = ((2, 1, ()), (2, 2, (1, 2, 4)), (4, 1, ()), (4, 2, ()), (4, 4, (1, 2)), (2, 0, ()))
CASES_OF_REHEARSAL = ((2, 1, (1, 2)),)

# A program that keeps to the processors that it is told, before it becomes the one that it is told.
_PINNED = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execvp(sys.argv[2], sys.argv[2:])"
)


class PinnedPlace(LocalPlace):
    """As ``LocalPlace``; each rank and each server has as many processors as there are for each, and no others."""

    def start(
        self, host: int, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> LocalProcess:
        # Ranks of one machine are on one host; their names say which is which.
        place = host if self.ranks_each == 1 else int(name.rpartition(" ")[2])
        cores = ",".join(map(str, self.cores_of(place)))
        return super().start(host, name, [sys.executable, "-c", _PINNED, cores, *command], environment, output)

    def cores_of(self, place: int) -> list[int]:
        cores = sorted(os.sched_getaffinity(0))
        each = len(cores) // (self.nodes * self.ranks_each + self.servers)
        return cores[place * each : (place + 1) * each] if each else [cores[place % len(cores)]]

    def watch(self, server_pids: Sequence[int]) -> Watch:
        # Some kernels do not say what a process has worked.
        return super().watch(server_pids) if Path("/proc/self/schedstat").exists() else Watch(None)


def with_threads(count: int) -> Variant:
    return Variant(environment={"SHOAL_SOCKETS": str(count), "SHOAL_THREADS": str(count)}, proxies=count)


def measure(nodes: int, servers: int, threads: Sequence[int]) -> Report:
    """Raises BenchError."""
    size = MB if stage.rehearses() else 100 * MB
    variants = {f"{count} threads": with_threads(count) for count in threads}
    plan = Plan(sizes=[size], rounds=2 if stage.rehearses() else 5, contestants=("shoal", "gloo"), variants=variants)
    return run_at(PinnedPlace(nodes, servers), plan)


def main() -> int:
    record = stage.Record()
    kept, status = {}, 0
    for nodes, servers, threads in CASES_OF_REHEARSAL if stage.rehearses() else CASES:
        name = f"{nodes} nodes, {servers} servers"
        try:
            report = measure(nodes, servers, threads)
        except (BenchError, OSError) as error:
            status = 1
            print(error)
            record.say(f"{name}: FAILED: {str(error).strip().splitlines()[-1]}")
            continue
        kept[name] = json.loads(report.to_json())
        record.keep("reports", kept)
        cores = len(PinnedPlace(nodes, servers).cores_of(0))
        (size,) = report.sizes
        rates = [f"{shown_name(one)} {8 * report.result(one, size).bandwidth / 1e9:.1f}" for one in report.contestants]
        record.say(f"{name}, {cores} processors each, {size / MB:g} MB, Gbit/s: {', '.join(rates)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
