"""Ranks and servers of this version of Shoal beside those of a build of another: both sides must say what does not fit.

    python tests/compat/wire_versions.py PYTHON

PYTHON: the interpreter of an environment with the other version (benchmarks/micro/before_after.py makes one of an earlier commit, in
build/before). Where the versions of the wire differ, each pair has to end with an error that names a version, within 30 s.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shoal.processes import free_master_port

PROGRAM = """
import numpy, shoal
shoal.init()
assert shoal.allreduce(numpy.ones(4), op="sum").tolist() == [2.0] * 4
shoal.shutdown()
"""
SECONDS = 30


def main() -> None:
    ours, theirs = sys.executable, sys.argv[1]
    pairs = {
        "rank 0 of this version, rank 1 of the other": (ours, theirs, None),
        "rank 0 of the other version, rank 1 of this": (theirs, ours, None),
        "ranks of this version, server of the other": (ours, ours, theirs),
        "ranks of the other version, server of this": (theirs, theirs, ours),
    }
    failed = [name for name, pythons in pairs.items() if not _tried(name, *pythons)]
    sys.exit(f"not told: {'; '.join(failed)}" if failed else 0)


def _tried(name: str, first: str, second: str, server: str | None) -> bool:
    port = free_master_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment |= {"SHOAL_SECRET": secrets.token_hex(16), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as folder:
        started = []

        def start(python: str, *arguments: str, **variables: str) -> None:
            with (Path(folder) / str(len(started))).open("wb") as output:
                command = [python, *arguments]
                run = subprocess.Popen(command, env=environment | variables, stdout=output, stderr=output, cwd=folder)
            started.append(run)

        try:
            if server is not None:
                start(server, "-m", "shoal.cli", "server", "--port", str(port + 2))
                environment["SHOAL_SERVERS"] = f"127.0.0.1:{port + 2}"
                time.sleep(5)
            for rank, python in enumerate((first, second)):
                start(python, "-c", PROGRAM, RANK=str(rank))
            ranks = started[-2:]
            until = time.monotonic() + SECONDS
            # Rank 0 may wait on, for a rank of its own version.
            while all(rank.poll() is None for rank in ranks) and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(1)
        finally:
            for run in started:
                run.kill()
                run.wait()
        said = [line for path in sorted(Path(folder).iterdir()) for line in path.read_text().splitlines()]
    told = [line for line in said if "version" in line]
    print(f"{name}:", *(told or said[-3:]), sep="\n    ", flush=True)
    return any(f"version {number}" in line for line in told for number in range(10))


if __name__ == "__main__":
    main()
