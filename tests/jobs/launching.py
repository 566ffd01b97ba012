"""``shoal run`` as a process of a test, and what is left of the processes that it has started."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from shoal.testing.lab import Host

SECONDS = 60.0


class Launcher:
    """A running ``shoal run``. ``wait_for`` reads its output as it comes; ``finish`` waits for its end.

    ``host``: where it runs, if not here. It has a process group of its own, as in a shell with job control.
    """

    def __init__(self, *arguments: str | Path, host: Host | None = None, **environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        command = [sys.executable, "-m", "shoal.cli", "run", *map(str, arguments)]
        self.process = subprocess.Popen(
            command if host is None else host.command(command),
            env={**inherited, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=os.setpgrp,  # Python 3.10 has no other way
        )

    def wait_for(self, count: int, pattern: str) -> list[str]:
        """Reads stdout until ``count`` lines match; a launcher that is stuck is ended by the test's clean-up."""
        assert self.process.stdout is not None
        found: list[str] = []
        for line in self.process.stdout:
            if re.search(pattern, line):
                found.append(line.rstrip("\n"))
            if len(found) == count:
                return found
        raise AssertionError(f"only {found} of {count} lines like {pattern!r}")

    def finish(self) -> tuple[int, str, str]:
        """Exit code, rest of stdout, stderr."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie that its new parent has not looked at yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def all_gone(pids: list[int], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))
