"""What 10,000 connections a minute that are not a job's cost a job whose server they go to: port scans, web requests, callers
that say nothing or little, lengths that nobody has memory for, wrong secrets.

Targets: its all-reduces slow by less than 10 %, and the server's memory grows by less than 16 MB. The strangers come and go
in turns while the job runs. They need a processor themselves, which the job's hosts share here: what is said of the
job's time is with that.

    sudo python benchmarks/micro/strangers.py [--turns 8] [--tls psk] [--out FILE]

With ``--tls psk`` job and servers encrypt, and some of the strangers begin to. Needs root. Takes 2 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import os
import statistics
import subprocess
import time

import click
from common import verdict
from results import FOLDER
from watched_job import TIMED, Job, Place, medians_of, place, processor_seconds, resident, within

from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_seconds
from shoal.bench.watch import foreign_load
from shoal.testing.lab import Lab, LinkShape

NODES, SERVERS = 3, 2
RATE = 400e6
SIZE = 8_000_000
PER_MINUTE = 10_000
TURN = 6.0
# Of each turn: until what the last one left is over.
SETTLING = 1.0
SLOWER, GROWTH = 1.10, 16e6


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--turns", default=8, help="With strangers, and as many without.")
@click.option("--tls", type=click.Choice(["off", "psk"]), default="off", help="SHOAL_TLS of the job and its servers.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="strangers.txt or strangers_psk.txt.")
def main(turns: int, tls: str, out: Path | None) -> None:
    out = out or FOLDER / ("strangers.txt" if tls == "off" else f"strangers_{tls}.txt")
    facts = machine_facts() | {"SHOAL_TLS": tls, "other load, before": f"{foreign_load():.2f} processors"}
    with Lab(NODES + SERVERS + 1, LinkShape(rate=RATE)) as lab, place(lab, lab.hosts[NODES:-1], tls) as there:
        job = there.job(lab.hosts[:NODES], TIMED, SIZE)
        lines = _measure(lab, there, job, turns)
    lines += ["", *(f"{name}: {fact}" for name, fact in facts.items())]
    out.write_text("\n".join(lines) + "\n")
    print(out.read_text(), end="")


def _measure(lab: Lab, there: Place, job: Job, turns: int) -> list[str]:
    server = there.servers[0].pid
    time.sleep(TURN)
    before = most = resident(server)
    moments: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    busy = dict.fromkeys(moments, 0.0)
    command = ["-m", "shoal.testing.strangers", there.server_addresses[0], str(there.server_port), str(PER_MINUTE)]
    strangers = lab.hosts[-1].start(
        [sys.executable, *command],
        env=os.environ | there.security,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    made = _switch(strangers)  # off
    calling = 0.0
    for turn in range(2 * turns):
        name = "without" if turn % 2 == 0 else "with"
        if name == "with":
            _switch(strangers)
        began, ran = time.monotonic(), processor_seconds(server)
        while time.monotonic() < began + TURN:
            time.sleep(0.1)
            most = max(most, resident(server))
        busy[name] += processor_seconds(server) - ran
        if name == "with":
            made = _switch(strangers)
            calling += time.monotonic() - began
        moments[name].append((began + SETTLING, began + TURN))
    timings = job.timings()
    found = {name: [within(timings, *moment) for moment in own] for name, own in moments.items()}
    return _describe(found, made, calling, before, most, {name: spent / (turns * TURN) for name, spent in busy.items()})


def _switch(strangers: "subprocess.Popen[str]") -> int:
    """How many connections there have been."""
    assert strangers.stdin is not None
    assert strangers.stdout is not None
    strangers.stdin.write("\n")
    strangers.stdin.flush()
    return int(strangers.stdout.readline().split()[0])


def _describe(
    found: dict[str, list[list[float]]], made: int, calling: float, before: int, most: int, busy: dict[str, float]
) -> list[str]:
    medians = medians_of(found)
    ratio = medians["with"] / medians["without"]
    lines = [
        f"All-reduces of {SIZE / 1e6:g} MB, {NODES} nodes, {SERVERS} servers, {RATE / 1e6:g} Mbit/s; strangers call the first server",
        "",
        f"{'':<10}{'median':>10}{'turns from':>12}{'to':>10}{'all-reduces':>13}{'the server is busy':>20}",
    ]
    for name, turns in found.items():
        own = [statistics.median(turn) for turn in turns]
        count = sum(len(turn) for turn in turns)
        cells = [
            f"{show_seconds(value):>{width}}" for value, width in ((medians[name], 10), (min(own), 12), (max(own), 10))
        ]
        lines.append(f"{name:<10}{''.join(cells)}{count:>13}{100 * busy[name]:>18.0f} %")
    lines += [
        "",
        f"{made} connections in {calling:.0f} s: {60 * made / calling:.0f} a minute",
        f"the server's memory: {before / 1e6:.1f} MB before the first, at most {most / 1e6:.1f} MB",
        verdict(f"at least {0.95 * PER_MINUTE:.0f} a minute", 60 * made / calling >= 0.95 * PER_MINUTE),
        verdict(f"slower by less than {SLOWER - 1:.0%}: {ratio - 1:+.1%}", ratio < SLOWER),
        verdict(
            f"memory grows by less than {GROWTH / 1e6:g} MB: {(most - before) / 1e6:.1f} MB", most - before < GROWTH
        ),
    ]
    return lines


if __name__ == "__main__":
    main()
