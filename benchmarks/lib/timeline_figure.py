"""What scripts share that draw a figure of the timeline of a job: its ranks are the script itself, started with --rank."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def main(about: str | None, figure: str, train: Callable[[], None], draw: Callable[[Path], None]) -> None:
    """``about``: the script's docstring. ``figure``: where it goes unless the command says otherwise. ``train``: one rank."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n\n")[0])
    parser.add_argument("figure", nargs="?", type=Path, default=Path(figure))
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        train()
    else:
        draw(asked.figure)
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; figure: {asked.figure}"
        )


def recorded(script: str, ranks: int, servers: int) -> tuple[list[Event], dict[str, Any]]:
    """The events of a job that has each rank of the script on a node of its own, and what its file says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SHOAL_TRACE": folder, "SHOAL_JOB": "timeline", "OMP_NUM_THREADS": "1"}
        shoal = Path(sys.executable).with_name("shoal")
        command = [shoal, "run", "-n", str(ranks), "--nodes", str(ranks), "--servers", str(servers), script, "--rank"]
        subprocess.run(command, env=environment, check=True, timeout=300)
        (timeline,) = Path(folder).glob("timeline-*.json")
        document = json.loads(timeline.read_text())
    return document["traceEvents"], document["metadata"]


def pyplot() -> Any:
    """matplotlib's, for figures that are the same text each time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
