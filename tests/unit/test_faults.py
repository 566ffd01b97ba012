"""The faults that show what the simulated network is worth (native/tests/faults) fit the sources as they are."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = sorted((ROOT / "native/tests/faults").rglob("*.patch"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda path: path.stem)
def test_fault_fits_the_sources(fault: Path) -> None:
    command = ["patch", "-p1", "--dry-run", "--force", "-i", str(fault)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
