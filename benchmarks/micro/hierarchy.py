"""Gradients of nodes with several ranks, summed in the node first: what the part between nodes costs, and the whole.

Two nodes of four ranks in a lab, links of 1 Gbit/s, as many servers as nodes, 100 MB of gradients in one bucket. Inside
a node gloo does a reduce-scatter and an all-gather, on this machine's loopback: a stand-in for NCCL, much slower, and on
the same processors. M / B: the time that a link takes for the gradients once.

    sudo python benchmarks/micro/hierarchy.py [--out FILE]

Needs root for the lab, a minute, and nothing else at work. Target: the part between nodes takes at most 1.05 M / B.
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
import time

import click
from common import verdict
from results import results_of

from shoal.bench.machine import machine_facts
from shoal.testing.lab import Lab, LinkShape

LIB = Path(__file__).resolve().parents[1] / "lib"
NODES, RANKS, SERVERS = 2, 4, 2
RATE = 1e9  # bits per second
BYTES = 100_000_000
AT_MOST = 1.05
SECONDS = 300
PROGRAM = "import json, hierarchy_ranks; print(json.dumps(hierarchy_ranks.averages({})), flush=True)"


def measure() -> tuple[list[list[float]], int]:
    """Rank 0's rounds, and the bytes of its slice."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment = clean | {"PYTHONPATH": str(LIB), "SHOAL_SECRET": secrets.token_hex(16), "GLOO_SOCKET_IFNAME": "eth0"}
    processes: list[subprocess.Popen[bytes]] = []
    with Lab(NODES + SERVERS, LinkShape(rate=RATE)) as lab, tempfile.TemporaryFile() as output:
        try:
            for index in range(NODES, NODES + SERVERS):
                server = ["-m", "shoal.cli", "server", "--host", lab.addresses[index], "--port", "7077"]
                processes.append(lab.hosts[index].start([sys.executable, *server], env=environment))
            time.sleep(2)  # until they listen
            environment["SHOAL_SERVERS"] = ",".join(f"{address}:7077" for address in lab.addresses[NODES:])
            for rank in range(NODES * RANKS):
                place = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(NODES * RANKS),
                    "LOCAL_RANK": str(rank % RANKS),
                    "LOCAL_WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": lab.addresses[0],
                    "MASTER_PORT": "29500",
                }
                command = [sys.executable, "-c", PROGRAM.format(BYTES)]
                stdout = output if rank == 0 else subprocess.DEVNULL
                processes.append(lab.hosts[rank // RANKS].start(command, env=environment | place, stdout=stdout))
            for process in processes[SERVERS:]:
                if process.wait(SECONDS) != 0:
                    raise click.ClickException("a rank has failed; see what it says above")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
        output.seek(0)
        rounds, slice_bytes = json.loads(output.read().decode().splitlines()[-1])
    return rounds, slice_bytes


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=results_of(__file__).with_suffix(".txt")
)
def main(out: Path) -> None:
    rounds, slice_bytes = measure()
    link = BYTES * 8 / RATE
    between, whole, local = (statistics.median(column) for column in zip(*rounds, strict=True))
    lines = [f"{name}: {fact}" for name, fact in machine_facts().items()]
    lines += [
        "",
        f"{NODES} nodes of {RANKS} ranks, {SERVERS} servers, {RATE / 1e9:g} Gbit/s, {BYTES // 10**6} MB; M / B {link:.3f} s",
    ]
    lines += [f"{len(rounds)} rounds; medians, and every round:", ""]
    for name, middle, column in zip(
        ("between", "whole", "local"), (between, whole, local), zip(*rounds, strict=True), strict=True
    ):
        lines.append(f"{name}: {middle:.3f} s, {middle / link:.3f} M / B ({' '.join(f'{one:.3f}' for one in column)})")
    lines += [
        f"whole by local + M / B: {whole / (local + link):.3f}",
        f"bytes that a rank sends between nodes: {slice_bytes}, of {BYTES}",
    ]
    lines += ["", verdict(f"between nodes at most {AT_MOST:g} M / B, {between / link:.3f}", between <= AT_MOST * link)]
    out.write_text("\n".join(lines) + "\n")
    print(out.read_text(), end="")


if __name__ == "__main__":
    main()
