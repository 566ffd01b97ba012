"""The Python interpreters of this machine, one for each version that Shoal supports.

Found on PATH, as python3.10 and so on, and where pyenv keeps what it has installed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 10
NEWEST = 14


def version_of(python: Path) -> tuple[int, int] | None:
    """The version (major, minor) of an interpreter; None where it does not run, as pyenv's stand-ins may not."""
    command: list[str | Path] = [python, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def find() -> dict[int, Path]:
    """Python 3's minor version → its interpreter, oldest first, for each supported version that is here."""
    found: dict[int, Path] = {}
    for minor in range(OLDEST, NEWEST + 1):
        candidates = [Path(path) for path in [shutil.which(f"python3.{minor}")] if path]
        candidates += sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"), reverse=True)
        if sys.version_info[:2] == (3, minor):
            candidates.insert(0, Path(sys.executable))
        for candidate in candidates:
            if version_of(candidate) == (3, minor):
                found[minor] = candidate
                break
    return found
