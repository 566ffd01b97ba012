"""Runs a program of scripts/ with a backend, as a user would, and compares what it prints with what it prints with another."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 400.0

# What is summed in another order differs in the last bits, and training makes more of it.
RELATIVE, ABSOLUTE = 1e-4, 1e-6

_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


# gloo's ranks end like this now and then when they have printed all, on a busy machine and with FSDP2.
RIVALS_END = "terminate called without an active exception"


def run(name: str, backend: str, ranks: int, *arguments: str, **variables: str) -> list[str]:
    """The lines that the script prints. As a user would run it; fails the test if it fails."""
    return printed(start(name, backend, ranks, *arguments, **variables))


def run_with_gloo(name: str, ranks: int, *arguments: str, folder: Path | None = None, **variables: str) -> list[str]:
    """What is expected. ``folder``: for a script that keeps something; each try begins with an empty one in it."""
    for attempt in range(3):
        kept = [] if folder is None else ["--folder", str(folder / str(attempt))]
        finished = start(name, "gloo", ranks, *arguments, *kept, **variables)
        if RIVALS_END not in finished.stderr:
            break
    return printed(finished)


def printed(finished: subprocess.CompletedProcess[str]) -> list[str]:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout
    return finished.stdout.splitlines()


def start(name: str, backend: str, ranks: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``ranks`` 0: the program starts its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    options = ["--max-restarts", "1"] if "--kill" in arguments else []
    return start_by([*launcher, *options] if ranks else [sys.executable], name, backend, *arguments, **variables)


def start_by(
    command: list[str], name: str, backend: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """With a launcher of the caller's choice."""
    return subprocess.run(
        [*command, str(SCRIPTS / f"{name}.py"), "--backend", backend, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def assert_same(found: list[str], expected: list[str]) -> None:
    """Word for word; numbers with a fraction to within the tolerance."""
    for line, other in itertools.zip_longest(found, expected, fillvalue=""):
        assert _NUMBER.sub("#", line) == _NUMBER.sub("#", other)
        ours, theirs = ([float(number) for number in _NUMBER.findall(each)] for each in (line, other))
        assert ours == pytest.approx(theirs, rel=RELATIVE, abs=ABSOLUTE), (line, other)
