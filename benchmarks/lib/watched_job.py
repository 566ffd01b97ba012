"""What the scripts share that disturb a job's servers while it runs: a lab, its servers, and a job all of whose all-reduces are
timed, with the moments at which they began. All hosts of a lab share a clock, so a script knows what was going on by the
time alone, and the job runs on as if nobody looked.

Run as a program it is a rank of such a job, or of one beside it.
"""

import contextlib
import os
import secrets
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

import shoal
from shoal.errors import Mismatch, ShoalError
from shoal.testing.lab import Host, Lab

_ENTRY = struct.Struct("<dd")
_PORT = 7077
_FIRST_RENDEZVOUS = 7100
_START_SECONDS = 60.0

# How a job behaves.
TIMED = "timed"
WELL = "well"
SHAPES = "shapes"
SILENT = "silent"


class Place:
    """Servers on some hosts of a lab, and jobs on others, with one secret. ``tls``: SHOAL_TLS of all of them.

    ``interfaces``: SHOAL_INTERFACE of the servers; "": not set."""

    def __init__(self, lab: Lab, servers: Sequence[Host], tls: str = "off", interfaces: str = "") -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self.security = {"SHOAL_SECRET": secrets.token_hex(16), "SHOAL_TLS": tls}
        self._environment = clean | self.security | {"SHOAL_LOG": "error", "PYTHONUNBUFFERED": "1"}
        self._next_port = _FIRST_RENDEZVOUS
        self._jobs: list[subprocess.Popen[str]] = []
        self._folder = tempfile.TemporaryDirectory()
        self.servers = [self._server(host, _interface(interfaces)) for host in servers]
        self.server_addresses = [host.address for host in servers]
        self.server_port = _PORT
        self._environment["SHOAL_SERVERS"] = ",".join(f"{host.address}:{_PORT}" for host in servers)
        self._environment["SHOAL_COLOCATED"] = "never"

    def job(self, hosts: Sequence[Host], behaviour: str, size: int, interfaces: str = "") -> "Job":
        """A job with a rank on each host, running. ``interfaces``: SHOAL_INTERFACE of its ranks; "": not set."""
        log = Path(self._folder.name) / f"job{self._next_port}"
        rendezvous = {"SHOAL_RENDEZVOUS": f"{hosts[0].address}:{self._next_port}", "WORLD_SIZE": str(len(hosts))}
        rendezvous |= _interface(interfaces)
        self._next_port += 1
        ranks = []
        for rank, host in enumerate(hosts):
            place = {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            command = [__file__, behaviour, str(size), str(log)]
            ranks.append(_start(host, command, {**self._environment, **rendezvous, **place}))
        self._jobs += ranks
        job = Job(ranks, log)
        job.await_going()
        return job

    def close(self) -> None:
        _kill([*self._jobs, *self.servers])
        self._folder.cleanup()

    def _server(self, host: Host, interface: dict[str, str]) -> "subprocess.Popen[str]":
        command = ["-m", "shoal.cli", "server", "--host", host.address, "--port", str(_PORT)]
        server = _start(host, command, self._environment | interface)
        assert server.stdout is not None
        said = server.stdout.readline()
        if "listening" not in said:
            raise ShoalError(f"a server did not start: {said}")
        return server


class Job:
    """Its ranks by rank; ``log`` is rank 0's."""

    def __init__(self, ranks: "list[subprocess.Popen[str]]", log: Path) -> None:
        self.ranks = ranks
        self._log = log

    def await_going(self) -> None:
        """Until every rank has begun with what it does."""
        for rank in self.ranks:
            assert rank.stdout is not None
            if rank.stdout.readline().strip() != "going":
                raise ShoalError("a rank did not start: see what it said above")

    def timings(self) -> list[tuple[float, float]]:
        """(monotonic seconds at which it began, seconds that it took) of every all-reduce until now."""
        data = self._log.read_bytes()
        return list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))

    def kill(self) -> None:
        _kill(self.ranks)


@contextlib.contextmanager
def place(lab: Lab, servers: Sequence[Host], tls: str = "off", interfaces: str = "") -> Iterator[Place]:
    made = Place(lab, servers, tls, interfaces)
    try:
        yield made
    finally:
        made.close()


def _interface(names: str) -> dict[str, str]:
    return {"SHOAL_INTERFACE": names} if names else {}


def within(timings: Sequence[tuple[float, float]], begin: float, end: float) -> list[float]:
    """What was taken by those that began and ended in this time."""
    return [seconds for moment, seconds in timings if moment >= begin and moment + seconds <= end]


def medians_of(turns: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    """For each name, the median of all of its turns' figures."""
    return {name: statistics.median(value for turn in own for value in turn) for name, own in turns.items()}


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _kill(processes: "Sequence[subprocess.Popen[str]]") -> None:
    """All at once, so that none hears of another's end."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _start(host: Host, arguments: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    process: subprocess.Popen[str] = host.start(
        [sys.executable, *arguments], env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    return process


def _rank(behaviour: str, size: int, log: Path) -> None:
    """Goes on until it is killed."""
    shoal.init()
    values: Any = numpy.ones(size // 4, numpy.float32)
    shoal.allreduce_(values, op="mean")
    print("going", flush=True)
    with log.open("ab") if shoal.rank() == 0 else contextlib.nullcontext() as file:
        while True:
            if behaviour == SHAPES:
                with contextlib.suppress(Mismatch):
                    shoal.allreduce(values[: len(values) - shoal.rank()], op="mean", name="differs")
            elif behaviour == SILENT:
                _fall_silent(values)
            else:
                began = time.monotonic()
                shoal.allreduce_(values, op="mean")
                if file is not None and behaviour == TIMED:
                    file.write(_ENTRY.pack(began, time.monotonic() - began))
                    file.flush()


def _fall_silent(values: Any) -> None:
    """Rank 0 has opened many operations, which the last rank never calls."""
    if shoal.rank() + 1 < shoal.size():
        handles = [shoal.allreduce_async(values, op="mean") for _ in range(32)]
        print(f"{len(handles)} operations wait", file=sys.stderr)
    time.sleep(3600)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _rank(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
