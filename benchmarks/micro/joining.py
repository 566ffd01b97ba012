"""How long ranks take to join: until the process group is made, and until its first 1 KiB is summed; 8, 32 and 64 ranks on loopback.

gloo connects every rank with every other one before it is ready, unless TORCH_GLOO_LAZY_INIT=1 says that ranks connect when they first
have something for each other. Shoal measures its network while it joins. Each time is from the last rank's beginning to the
last rank's end; processes that have PyTorch loaded are there already. Each rank is a node of its own.

    python benchmarks/micro/joining.py [--quick]
        3 minutes; results in benchmarks/results (.txt, .json)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import secrets
import statistics
import subprocess

import click
from common import lined_up
from results import results_of

from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_seconds
from shoal.bench.teams import base_environment
from shoal.bench.watch import foreign_load

RANKS, ROUNDS = (8, 32, 64), 7
# By name: the backend, and its variables.
CONTESTANTS = {
    "Shoal": ("shoal", {}),
    "gloo": ("gloo", {}),
    "gloo lazy": ("gloo", {"TORCH_GLOO_LAZY_INIT": "1"}),
}
_PROGRAM = Path(__file__).resolve().parents[1] / "lib" / "joining_ranks.py"

# By contestant: of each round, what each rank said.
Found = dict[str, list[list[dict[str, float]]]]


def measure(ranks: int, rounds: int) -> Found:
    environment = base_environment() | {"GLOO_SOCKET_IFNAME": "lo", "SHOAL_SECRET": secrets.token_hex(16)}
    environment.pop("TORCH_GLOO_LAZY_INIT", None)
    jobs = {
        name: subprocess.Popen(
            [sys.executable, str(_PROGRAM), backend, str(ranks)],
            env=environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, (backend, variables) in CONTESTANTS.items()
    }
    found: Found = {name: [] for name in jobs}
    for turn in range(-1, rounds):
        for name, job in jobs.items():
            assert job.stdin is not None
            assert job.stdout is not None
            print(f"{ranks} ranks, {name}", file=sys.stderr)
            job.stdin.write("\n")
            job.stdin.flush()
            line = job.stdout.readline()
            if not line:
                raise click.ClickException(f"{name}: {ranks} ranks ended with exit code {job.wait()}")
            if turn >= 0:
                found[name].append(json.loads(line))
    for job in jobs.values():
        job.communicate()
    return found


def seconds(rounds: list[list[dict[str, float]]], until: str) -> float:
    """Median of the rounds: from the last rank's beginning to the last rank's end."""
    return statistics.median(max(one[until] for one in job) - max(one["began"] for one in job) for job in rounds)


def tell(found: dict[str, Found], facts: dict[str, str]) -> list[str]:
    rows = [["ranks", "", "joined", "first sum", "connections of a rank"]]
    for ranks, contestants in found.items():
        for name, rounds in contestants.items():
            most = max(int(one["connections"]) for job in rounds for one in job[1:])
            rows.append([ranks, name, *(show_seconds(seconds(rounds, end)) for end in ("joined", "summed")), str(most)])
    return [
        "Ranks that join, each a node of its own, on loopback: medians; connections of those that are not rank 0 after the first sum",
        "",
        *lined_up(rows),
        "",
        *(f"{name}: {fact}" for name, fact in facts.items()),
    ]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few ranks and turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors", "torch threads a rank": "1"}
    found = {str(ranks): measure(ranks, 2 if quick else ROUNDS) for ranks in (RANKS[:1] if quick else RANKS)}
    lines = tell(found, facts)
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        stem.with_suffix(".json").write_text(json.dumps({"facts": facts, "found": found}) + "\n")


if __name__ == "__main__":
    main()
