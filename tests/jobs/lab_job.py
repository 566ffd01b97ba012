"""A job whose ranks, and servers, are on hosts of a lab of their own: for tests that break its network."""

import contextlib
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.testing.lab import Lab, LinkShape

START_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """What a rank said when it failed: when (CLOCK_MONOTONIC), the rank that its error names, the error."""

    when: float
    rank: int | None
    kind: str
    text: str


class LabJob:
    """``call``: what every rank runs, of ``module``. Host i has rank i; the servers come after the ranks.

    ``meets_in``: the network in which the ranks meet.
    """

    def __init__(
        self,
        lab: Lab,
        ranks: int,
        call: str,
        environment: dict[str, str],
        folder: Path,
        module: str = "busy_ranks",
        meets_in: int = 0,
    ) -> None:
        self.lab = lab
        self.ranks = ranks
        self._meets_at = lab.hosts[0].links[meets_in].address
        self._folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        everywhere = clean | {
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONFAULTHANDLER": "1",
            "SHOAL_SECRET": secrets.token_hex(16),
            **environment,
        }
        servers = range(ranks, len(lab.hosts))
        self.servers = [
            self._start(
                index, ["-m", "shoal.cli", "server", "--host", lab.addresses[index], "--port", "7077"], everywhere
            )
            for index in servers
        ]
        self.wait_for(lambda: all("listening" in self.output(index) for index in servers))
        if servers:
            everywhere["SHOAL_SERVERS"] = ",".join(f"{lab.addresses[index]}:7077" for index in servers)
        program = f"import {module}; {module}.{call}"
        self.processes = [self._start(rank, ["-c", program], everywhere | self._place(rank)) for rank in range(ranks)]
        self.wait_for(lambda: all("working" in self.output(rank) for rank in range(ranks)))

    def _place(self, rank: int) -> dict[str, str]:
        return {
            "SHOAL_RENDEZVOUS": f"{self._meets_at}:7000",
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }

    def _start(self, index: int, arguments: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        with (self._folder / str(index)).open("wb") as output:
            return self.lab.hosts[index].start(
                [sys.executable, *arguments], env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def output(self, index: int) -> str:
        """What the program on a host has written until now."""
        path = self._folder / str(index)
        return path.read_text() if path.exists() else ""

    def everything(self) -> str:
        return "\n".join(f"--- host {index}\n{self.output(index)}" for index in range(len(self.lab.hosts)))

    def wait_for(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.everything()
            time.sleep(0.02)

    def wait(self, seconds: float) -> list[int]:
        """The exit codes by rank; how the ranks have ended is an outcome, that they have is not."""
        self.wait_for(lambda: all(process.poll() is not None for process in self.processes), seconds)
        return [process.returncode for process in self.processes]

    def failures(self) -> list[Failure]:
        """What each rank said when it failed, by rank; all must have."""
        found = []
        for rank in range(self.ranks):
            said = re.search(r"^failed ([\d.]+) [\d.]+ (-?\d+|None) (\w+) (.*)$", self.output(rank), re.MULTILINE)
            assert said is not None, self.everything()
            number = None if said[2] == "None" else int(said[2])
            found.append(Failure(float(said[1]), number, said[3], said[4]))
        return found


@contextlib.contextmanager
def lab_job(
    ranks: int,
    call: str,
    *,
    servers: int = 0,
    rate: float = 200e6,
    further: Sequence[float] = (),
    module: str = "busy_ranks",
    meets_in: int = 0,
    **environment: str,
) -> Iterator[LabJob]:
    """Started, and working; gone with the ``with`` block. ``further``: the rates of networks beside the first, of which
    ``meets_in`` is the one in which the ranks meet."""
    networks = [LinkShape(rate=each) for each in further]
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(ranks + servers, LinkShape(rate=rate), further=networks) as lab,
    ):
        yield LabJob(lab, ranks, call, environment, Path(folder), module, meets_in)
