"""How much memory there is, and how much of it a server may take: docs/decisions/server-memory.md."""

import os
import re
from pathlib import Path

from shoal.errors import ConfigurationError

MIB = 1024 * 1024

# More than any machine has.
_MOST = 2**60

# A process is taken to have as much at least when it listens, whatever the kernel says of it, and each job to need so much.
_LEAST_OWN = 48 * MIB
_LEAST_FOR_JOBS = 16 * MIB

_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": 1024 * 1024 * MIB}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes: ``8G``, ``512M``, ``1.5GiB``; units are powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if not 1 <= size <= _MOST:
        raise ValueError(f"{text!r} is not a size of memory: write 8G or 512M")
    return int(size)


def shown_size(size: int) -> str:
    """For messages, in MiB or GiB."""
    return f"{size / (1024 * MIB):.1f} GiB" if size >= 1024 * MIB else f"{size // MIB} MiB"


def default_bound() -> int:
    """Half of what this machine, or the container that this process is in, has; enough for a small job in any case."""
    return max(available() // 2, 2 * (_LEAST_OWN + _LEAST_FOR_JOBS))


def available(root: Path = Path("/")) -> int:
    """Bytes of memory that processes here may have: the machine's, or the smallest limit of this one's control groups.

    ``root``: where /proc and /sys are, for tests.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    groups = root / "sys/fs/cgroup"
    for path in _own_groups(root):
        for folder in (groups, groups / "memory"):
            for name in ("memory.max", "memory.limit_in_bytes"):
                # A container may see its own group as the root, by another path than the kernel's.
                limits += [_number(folder / part / name) for part in (*_upward(path), "")]
    return min(limit for limit in limits if limit > 0)


def for_jobs(memory: int) -> int:
    """What is left of it for jobs, beside what this process takes without any. Raises ConfigurationError if that is too little."""
    own = max(_LEAST_OWN, _resident())
    if memory < own + _LEAST_FOR_JOBS:
        raise ConfigurationError(
            f"--memory of {shown_size(memory)} is too little: a server takes {shown_size(own)} itself, and a job needs some "
            f"{shown_size(_LEAST_FOR_JOBS)}; give it at least {shown_size(own + _LEAST_FOR_JOBS + MIB)}"
        )
    return memory - own


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _own_groups(root: Path) -> list[str]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    entries = [line.split(":", 2) for line in lines]
    return [path for _, controllers, path in entries if controllers == "" or "memory" in controllers.split(",")]


def _upward(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)] if path.strip("/") else []


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max"
        return 0
