"""A rank that raises, exits or is interrupted: the others say so within two seconds, exit codes tell, nothing is left."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("failing_rank.py"))
RANKS = 3
PROMPT = 2.0
SECONDS = 60.0
MARK = "SHOAL_JOB"  # in the environment of every process of the job

# How rank 1 ends, what the others say of it, and its exit code as a shell has it.
ENDS = {
    "raise": (r"ShoalError: .*: rank 1 \(.*\) ended with an error: ArithmeticError: the loss is infinite", 1),
    "exit": (r"ShoalError: .*: rank 1 \(.*\) ended with an error: its program ended with exit code 3", 3),
    "SIGINT": (r"ShoalError: .*: rank 1 \(.*\) ended with an error: KeyboardInterrupt", 128 + signal.SIGINT),
    "SIGTERM": (r"PeerLost: .*: rank 1 \(.*\) is lost: its connection to rank 0 \(.*\) ended", 128 + signal.SIGTERM),
}


class Job:
    """A launcher with its ranks, whose output is read as it comes."""

    def __init__(self, launcher: list[str], how: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self.mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", *launcher, SCRIPT, how],
            env={**inherited, MARK: self.mark, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def pids(self) -> dict[int, int]:
        """The ranks' process numbers, once all of them work."""
        found: dict[int, int] = {}
        assert self.process.stdout is not None
        limit = threading.Timer(SECONDS, self.process.kill)
        limit.daemon = True
        limit.start()
        for line in self.process.stdout:
            self.output += line
            for rank, pid in re.findall(r"rank (\d+) pid (\d+) working", line):
                found[int(rank)] = int(pid)
            if len(found) == RANKS:
                return found
        raise AssertionError(self.output)

    def finish(self) -> int:
        self.output += self.process.communicate(timeout=SECONDS)[0]
        return self.process.returncode

    def when(self, what: str) -> list[float]:
        return [float(found) for found in re.findall(rf"at ([\d.]+) {what}", self.output)]

    def still_there(self) -> list[int]:
        """Processes that have the job's mark in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                except OSError:
                    continue
                if marked:
                    found.append(int(entry.name))
        return found


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture
def nothing_left() -> Iterator[list[Job]]:
    """Jobs put in here have left no process (so no socket either) and nothing in /dev/shm when the test has ended."""
    jobs: list[Job] = []
    before = shared_memory()
    yield jobs
    for job in jobs:
        job.process.kill()
        job.process.communicate(timeout=SECONDS)
        for pid in job.still_there():
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10.0  # other programs use shared memory, too, for a moment
    while (after := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert after == set()


def end_one(launcher: list[str], how: str, jobs: list[Job]) -> Job:
    """Runs a job in which rank 1 ends like that. The others have said it in time, and nothing is there any more."""
    by_signal = how.startswith("SIG")
    job = Job(launcher, "wait" if by_signal else how)
    jobs.append(job)
    pids = job.pids()
    if by_signal:
        time.sleep(0.2)
        ended = time.monotonic()
        os.kill(pids[1], signal.Signals[how])
    job.finish()
    if not by_signal:
        (ended,) = job.when("ends")
    failed = job.when(f"failed: {ENDS[how][0]}")
    assert len(failed) == RANKS - 1, job.output
    assert max(failed) - ended < PROMPT, job.output
    assert job.still_there() == []
    return job


@pytest.mark.parametrize(
    "how", ["raise", "SIGTERM", *(pytest.param(how, marks=pytest.mark.slow) for how in ("exit", "SIGINT"))]
)
def test_under_shoal_run_the_exit_code_is_that_of_the_rank_that_failed(how: str, nothing_left: list[Job]) -> None:
    launcher = ["shoal.cli", "run", "-n", str(RANKS), "--nodes", str(RANKS), "--servers", "1"]
    job = end_one(launcher, how, nothing_left)
    assert job.process.returncode == ENDS[how][1], job.output


@pytest.mark.parametrize(
    "how", ["raise", *(pytest.param(how, marks=pytest.mark.slow) for how in ("exit", "SIGINT", "SIGTERM"))]
)
def test_under_torchrun_the_rank_that_failed_is_the_root_cause(how: str, nothing_left: list[Job]) -> None:
    pytest.importorskip("torch")
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = end_one(launcher, how, nothing_left)
    assert job.process.returncode == 1
    cause = job.output.partition("Root Cause")[2]
    code = -int(signal.Signals[how]) if how.startswith("SIG") else ENDS[how][1]
    assert re.search(r"rank +: 1 ", cause), job.output
    assert re.search(rf"exitcode +: {code} ", cause), job.output


def test_an_interrupted_job_ends_at_once(nothing_left: list[Job]) -> None:
    job = Job(["shoal.cli", "run", "-n", str(RANKS)], "wait")
    nothing_left.append(job)
    job.pids()
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 128 + signal.SIGINT, job.output
    assert time.monotonic() - began < PROMPT + 1, job.output  # with the end of three interpreters
    assert job.still_there() == []
