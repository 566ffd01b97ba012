"""The example for TensorFlow runs, and does what it says."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensorflow_digits.py"


def test_the_digits_are_learnt_as_by_one_process() -> None:
    command = [sys.executable, "-m", "shoal.cli", "run", "-n", "4", "--nodes", "2", str(EXAMPLE), "--epochs", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"4 ranks: accuracy (\d+\.\d+)%", done.stdout)
    difference = re.search(r"from one process: (\S+)", done.stdout)
    assert accuracy, done.stdout
    assert float(accuracy[1]) > 90, done.stdout
    assert difference, done.stdout
    assert float(difference[1]) < 1e-5, done.stdout
