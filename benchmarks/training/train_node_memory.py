"""The memory that averaging takes on one machine: 4 ranks that train a model of 100 MB of parameters, without averaging, with PyTorch's
DistributedDataParallel and gloo, and with Shoal's.

The largest sum, while all of them start and train, of what each rank has for itself (RssAnon of /proc/PID/status) and of what they
share, once (the memory that the machine has given to their shared file, touched or not). It is read every few milliseconds, and does not
see memory that is the kernel's own, such as socket buffers. Target: with Shoal at most the arenas, one staging area of 16 MiB and 32 MiB
a rank more than without averaging. Plain SGD; on short texts, whose steps need hardly anything beside parameters and gradients, and on
long ones, which need most at the end of the forward pass, where nobody else has gradients, but the arenas are there.

    python benchmarks/training/train_node_memory.py [--quick]
        3 minutes, 6 GB of memory; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click
from common import lined_up, verdict
from results import results_of
from training_ranks import ALONE, Task
from training_teams import GLOO, Teams

from shoal.bench.machine import machine_facts
from shoal.bench.naming import SHOAL
from shoal.bench.places import LocalPlace
from shoal.gradients.layout import MIB


@dataclass(frozen=True)
class Case:
    """``sequences``, ``length``: of the texts of each rank in a step."""

    sequences: int
    length: int
    steps: int


CASES = {"short texts": Case(1, 8, 12), "long texts": Case(4, 128, 4)}
QUICK_CASES = {"short texts": Case(1, 8, 3)}
RANKS = 4
# Between two looks at all ranks.
PAUSE = 0.002
STAGING, ALLOWANCE = 16 * MIB, 32 * MIB
TEAMS = {ALONE: "without averaging", GLOO: "PyTorch with gloo", SHOAL: "Shoal"}


class Peak(threading.Thread):
    """Looks at processes until it is told to stop. ``pids``: those that there are by now."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        super().__init__(name="peak", daemon=True)
        self._pids = pids
        self._over = threading.Event()
        self.own = self.shared = self.looks = 0

    def run(self) -> None:
        while not self._over.is_set():
            pids = self._pids()
            own, shared = sum(resident(pid, "RssAnon") for pid in pids), shared_files(pids)
            if own + shared > self.own + self.shared:
                self.own, self.shared = own, shared
            self.looks += 1
            time.sleep(PAUSE)

    def stop(self) -> None:
        self._over.set()
        self.join()


def resident(pid: int, kind: str) -> int:
    """Bytes, by the names of /proc/PID/status; none of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:")), 0)


def shared_files(pids: Sequence[int]) -> int:
    """Bytes of memory that the files without a name have which these processes have open."""
    found = {}
    for descriptor in (one for pid in pids for one in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):  # it may have been closed
            if str(descriptor.readlink()).startswith("/memfd:"):
                status = descriptor.stat()
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def measure(name: str, case: Case) -> dict[str, Any]:
    with Teams(LocalPlace(RANKS, one_machine=True)) as teams:
        peak = Peak(lambda: list(teams.pids))
        peak.start()
        teams.start(name, Task("transformer", case.sequences, case.length))
        for _ in range(case.steps):
            teams.ask(name, {"do": "steps", "count": 1})
        size = teams.ask(name, {"do": "digest"})[0]["bytes"]
        peak.stop()
        return {
            "own": peak.own,
            "shared": peak.shared,
            "looks": peak.looks,
            "most resident": [resident(pid, "VmHWM") for pid in teams.pids],
            "parameters": size,
        }


def tell(cases: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    lines = [f"Memory of {RANKS} ranks of one machine that train a transformer, plain SGD; MiB, all ranks together"]
    for words, found in cases.items():
        case = CASES[words]
        lines += ["", f"{words}: {case.sequences} × {case.length} characters a rank and step", "", *_table(found)]
    lines.append("")
    for words, found in cases.items():
        arenas, beside = RANKS * found[SHOAL]["parameters"], STAGING + RANKS * ALLOWANCE
        more = _total(found[SHOAL]) - _total(found[ALONE])
        what = f"{words}: at most the arenas, {arenas / MIB:.0f} MiB, and {beside / MIB:.0f} MiB more than without averaging"
        lines.append(verdict(f"{what}, {more / MIB:.0f} MiB", more <= arenas + beside))
    looks = min(one["looks"] for found in cases.values() for one in found.values())
    return [*lines, f"looked at {looks} times or more; VmHWM counts files, and what ranks share, in every one of them"]


def _table(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = [["", "at most", "own", "shared", "more than without", "largest VmHWM of a rank"]]
    for name, words in TEAMS.items():
        one = found[name]
        more = _total(one) - _total(found[ALONE])
        cells = [_total(one), one["own"], one["shared"], more, max(one["most resident"])]
        rows.append([words, *(f"{cell / MIB:.0f}" for cell in cells)])
    return lined_up(rows)


def _total(one: dict[str, Any]) -> int:
    return int(one["own"]) + int(one["shared"])


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few steps, to try it: keeps nothing.")
def main(quick: bool) -> None:
    cases = QUICK_CASES if quick else CASES
    found = {words: {name: measure(name, case) for name in TEAMS} for words, case in cases.items()}
    facts = machine_facts()
    lines = [*tell(found), "", *(f"{name}: {fact}" for name, fact in facts.items())]
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        stem.with_suffix(".json").write_text(json.dumps({"facts": facts, "cases": found}) + "\n")


if __name__ == "__main__":
    main()
