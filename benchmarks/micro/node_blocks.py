"""All-gather, reduce-scatter and all-to-all among nodes of several ranks: 2 hosts of 4 ranks, links of 1 Gbit/s.

The backends "shoal" and "gloo" of torch.distributed are in the same processes, and take turns. M bytes are the whole array: what
an all-gather brings, what a reduce-scatter takes, what a rank gives to an all-to-all. At least M / 2 must cross a link each way
in the first two, and 2 M in the third (of 4 ranks, half of what each has). Targets: Shoal sends at most 1.05 times that, and
all-gather and reduce-scatter are at least 1.5 times as fast as gloo's. FSDP2's step is there without a target.

    sudo python benchmarks/micro/node_blocks.py [--quick]

Needs root for the lab. Takes 3 minutes on 2 cores; results in benchmarks/results (.txt, .json).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import json
import os
import secrets
import statistics
import subprocess
import tempfile
from typing import Any

import click
from common import lined_up, verdict
from results import results_of

from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_bytes, show_seconds
from shoal.bench.watch import foreign_load
from shoal.testing.lab import Lab, LinkShape

LIB = Path(__file__).resolve().parents[1] / "lib"
NODES, RANKS = 2, 4
RATE = 1e9  # bits per second
SIZES, TURNS = (4_194_304, 25_165_824), 9
BYTES_AT_MOST, TIMES_AS_FAST = 1.05, 1.5
SECONDS = 600
PROGRAM = "import json, node_blocks_ranks; print(json.dumps(node_blocks_ranks.take_turns({}, {}, {})), flush=True)"

# What must cross a link each way, of M.
LEAST = {
    "all-gather": (NODES - 1) / NODES,
    "reduce-scatter": (NODES - 1) / NODES,
    "all-to-all": RANKS * (NODES - 1) / NODES,
}
FASTER = ("all-gather", "reduce-scatter")


def measure(sizes: tuple[int, ...], turns: int) -> dict[str, Any]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment = clean | {"PYTHONPATH": str(LIB), "SHOAL_SECRET": secrets.token_hex(16), "GLOO_SOCKET_IFNAME": "eth0"}
    processes: list[subprocess.Popen[bytes]] = []
    with Lab(NODES, LinkShape(rate=RATE)) as lab, tempfile.TemporaryFile() as output:
        try:
            for rank in range(NODES * RANKS):
                place = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(NODES * RANKS),
                    "LOCAL_RANK": str(rank % RANKS),
                    "LOCAL_WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": lab.addresses[0],
                    "MASTER_PORT": "29500",
                    "NODE_BLOCKS_ADDRESS": lab.addresses[rank // RANKS],
                }
                command = [sys.executable, "-c", PROGRAM.format(list(sizes), turns, RANKS)]
                stdout = output if rank == 0 else subprocess.DEVNULL
                processes.append(lab.hosts[rank // RANKS].start(command, env=environment | place, stdout=stdout))
            for process in processes:
                if process.wait(SECONDS) != 0:
                    raise click.ClickException("a rank has failed; see what it says above")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
        output.seek(0)
        found: dict[str, Any] = json.loads(output.read().decode().splitlines()[-1])
    return found


def tell(found: dict[str, Any]) -> list[str]:
    rows = [["M", "", "Shoal", "× bound", "crosses", "gloo", "× bound", "crosses", "Shoal is"]]
    verdicts = []
    for size, operations in found["turns"].items():
        for operation, by_backend in operations.items():
            least = LEAST[operation] * int(size)
            times, crossed, cells = {}, {}, []
            for backend, turns in by_backend.items():
                times[backend] = statistics.median(turn[0] for turn in turns)
                crossed[backend] = statistics.median(max(turn[1:]) for turn in turns) / least
                cells += [
                    show_seconds(times[backend]),
                    f"{times[backend] * found['rate'] / least:.2f}",
                    f"{crossed[backend]:.3f} ×",
                ]
            ratio = times["gloo"] / times["shoal"]
            rows.append([show_bytes(int(size)), operation, *cells, f"{ratio:.2f} ×"])
            what = f"{operation}, {show_bytes(int(size))}"
            verdicts.append(
                verdict(
                    f"{what}: at most {BYTES_AT_MOST} of what must cross, {crossed['shoal']:.3f}",
                    crossed["shoal"] <= BYTES_AT_MOST,
                )
            )
            if operation in FASTER:
                verdicts.append(
                    verdict(f"{what}: at least {TIMES_AS_FAST} × gloo, {ratio:.2f}", ratio >= TIMES_AS_FAST)
                )
    steps = {backend: statistics.median(taken) for backend, taken in found["fsdp2"].items()}
    return [
        f"Collectives of torch.distributed on {NODES} nodes of {RANKS} ranks, links of {RATE / 1e9:g} Gbit/s, float32: medians",
        f"one TCP flow between the hosts: {found['rate'] / 1e6:.0f} MB/s; 'crosses': of what must cross a link each way",
        "",
        *lined_up(rows),
        "",
        f"FSDP2, a step of 16.8 million parameters: Shoal {show_seconds(steps['shoal'])}, gloo {show_seconds(steps['gloo'])}, "
        f"Shoal is {steps['gloo'] / steps['shoal']:.2f} ×",
        "",
        *verdicts,
    ]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--quick", is_flag=True, help="The small size and few turns, to try it: keeps nothing.")
def main(quick: bool) -> None:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors"}
    found = measure(SIZES[:1] if quick else SIZES, 2 if quick else TURNS)
    lines = [*tell(found), "", *(f"{name}: {fact}" for name, fact in facts.items())]
    print("\n".join(lines))
    if not quick:
        stem = results_of(__file__)
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        stem.with_suffix(".json").write_text(json.dumps({"facts": facts, **found}) + "\n")


if __name__ == "__main__":
    main()
