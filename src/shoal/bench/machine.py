"""The facts about a machine that belong beside every figure."""

import datetime
import os
import platform
from pathlib import Path


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
    }


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
