"""PyTorch's own tests of ``torch.distributed`` pass on Shoal, as many as do on gloo."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "c10d" / "run.py"

# Arguments → how many pass at least, with PyTorch 2.13.
RUNS = {
    "-n 2 --gpu-tests": 155,
    "-n 8": 106,
    "-n 2 --unskip Only.MPI.supports -k all_to_all": 9,
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", RUNS)
def test_pytorchs_own_tests(arguments: str, tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "shoal", *arguments.split(), "--log", str(tmp_path / "processes.log")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"(\d+) passed, 0 failed, 0 hung", run.stdout)
    assert passed is not None, run.stdout
    assert int(passed[1]) >= RUNS[arguments], run.stdout
