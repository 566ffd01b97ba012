"""What a training step takes, and how long the host is blocked in it: no averaging, Shoal's wrapper with both ways of
waiting, PyTorch's DDP on "shoal" and on gloo, by turns.

    python benchmarks/gpu/steps.py [--ranks N] [--on-gpu N] [--model NAME] [--only TEAM ...]

Rank 0 trains on the GPU, in bfloat16 by autocast; the others replay gradients on the processor, without computing,
and so are never the ones that are waited for. Gradients are float32. A step's time is that of many, one after the
other. Blocked is the host, in steps that begin when the device is idle, for the time that neither of its two threads
works.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


import argparse
import statistics
import time
from typing import Any

import models
import stage
from common import lined_up
from step_teams import SERVERS, SHOWN, open_teams, parameter_bytes, task_of
from training_ranks import ALONE
from training_teams import Steps, Teams

from shoal.bench.conductor import BenchError

TURNS, STEPS, FIRST_STEPS, HOST_STEPS = 3, 4, 4, 3


def measure(teams: Teams, names: list[str], model: str, record: stage.Record) -> dict[str, Any]:
    """Each team's steps, and what its rank 0's host did. A team that fails is left out."""
    turns, steps = (1, 1) if stage.rehearses() else (TURNS, STEPS)
    done = {name: Steps() for name in names}
    hosts: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    failed: set[str] = set()

    def ask(name: str, does: str, count: int) -> list[dict[str, Any]] | None:
        if name in failed:
            return None
        try:
            if does == "begin":
                teams.start(name, task_of(model))
                return None
            return teams.ask(name, {"do": does, "count": count})
        except (BenchError, OSError) as error:
            failed.add(name)
            print(error)
            record.say(f"{model}, {SHOWN[name]}: FAILED: {str(error).strip().splitlines()[-1]}")
            return None

    for name in names:
        ask(name, "begin", 0)
    for turn in range(-1, turns):
        for name in names:
            answers = ask(name, "steps", (1 if stage.rehearses() else FIRST_STEPS) if turn < 0 else steps)
            if answers is not None:
                done[name].take(answers, counts=turn >= 0)
    for turn in range(-1, turns):
        for name in names:
            answers = ask(name, "hosts", 1 if stage.rehearses() or turn < 0 else HOST_STEPS)
            if answers is not None and turn >= 0:
                for phase, seconds in answers[0]["hosts"].items():
                    hosts[name].setdefault(phase, []).extend(seconds)
    return {
        name: {"seconds": done[name].seconds, "cpu": done[name].cpu, "hosts": hosts[name]}
        for name in names
        if name not in failed and done[name].seconds
    }


def table(found: dict[str, Any]) -> list[list[str]]:
    """In milliseconds."""
    rows = [["", "step", "fastest", "slowest", "added", "host", "of it blocked", "forward", "backward", "optimizer"]]
    alone = statistics.median(found[ALONE]["seconds"]) if ALONE in found else None
    for name, one in found.items():
        seconds, hosts = one["seconds"], one["hosts"]
        middle = statistics.median(seconds)
        blocked = {phase: _middle(hosts, f"{phase}, blocked") for phase in ("forward", "backward", "optimizer")}
        host = sum(_middle(hosts, f"{phase}, host") for phase in blocked)
        times = [middle, min(seconds), max(seconds), middle - alone if alone is not None else float("nan")]
        times += [host, sum(blocked.values()), *blocked.values()]
        rows.append([SHOWN[name], *(f"{1e3 * each:.2f}" for each in times)])
    return rows


def _middle(hosts: dict[str, list[float]], name: str) -> float:
    return statistics.median(hosts[name]) if hosts.get(name) else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--on-gpu", type=int, default=1)
    parser.add_argument("--model", choices=models.MODELS, action="append")
    parser.add_argument("--only", choices=list(SHOWN), action="append", help="these teams")
    given = parser.parse_args()
    record = stage.Record()
    names = [name for name in SHOWN if given.only is None or name in given.only]
    is_whole = True
    with open_teams(given.ranks, given.on_gpu) as teams:
        for model in given.model or models.MODELS:
            begun = time.monotonic()
            found = measure(teams, names, model, record)
            record.keep(model, found)
            is_whole = is_whole and len(found) == len(names)
            task, nbytes = task_of(model), parameter_bytes(model)
            many = max((len(one["seconds"]) for one in found.values()), default=0)
            where = f"{given.on_gpu} on the GPU, {given.ranks - given.on_gpu} replaying, {SERVERS} servers"
            record.say(
                f"{model}, {nbytes / 1e6:.3g} MB of gradients, {task.sequences} × {task.length}, {where}; ms, "
                f"medians of {many} turns ({time.monotonic() - begun:.0f} s)"
            )
            for line in lined_up(table(found)):
                record.say(f"  {line}")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
