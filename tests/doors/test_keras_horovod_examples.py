"""The examples of Horovod's kind for TensorFlow and Keras run, and learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod"


@pytest.mark.parametrize("unchanged", [False, True])
@pytest.mark.parametrize("name", ["tensorflow2_mnist.py", "keras_digits.py"])
def test_the_digits_are_learnt(name: str, unchanged: bool, tmp_path: Path) -> None:
    """Also as a script for Horovod, which is not changed."""
    source, launcher, options = (EXAMPLES / name).read_text(), [], []
    if unchanged:
        source = source.replace("import shoal.horovod.", "import horovod.")
        launcher, options = ["--as-horovod"], ["--fp16-allreduce"]
    (tmp_path / name).write_text(source)
    command = [sys.executable, "-m", "shoal.cli", "run", "-n", "2", *launcher, str(tmp_path / name)]
    command += ["--epochs", "4", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = re.findall(r"accuracy (\d+\.\d+)%", done.stdout)
    assert accuracies, done.stdout
    assert float(accuracies[-1]) > 85, done.stdout
