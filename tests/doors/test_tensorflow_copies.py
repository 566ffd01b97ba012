"""TensorFlow's door copies no more than it must: an operation nothing, gradients once, into the buffers that they travel in."""

import subprocess
from pathlib import Path

import pytest
import tensorflow_copies

from shoal.testing import run_ranks

COUNTER = Path(__file__).with_name("copies.c")


@pytest.mark.parametrize("nodes", [1, 2])
def test_whole_tensors_are_copied_as_often_as_they_must_be(tmp_path: Path, nodes: int) -> None:
    counter = tmp_path / "copies.so"
    subprocess.run(["cc", "-O2", "-fno-builtin", "-shared", "-fPIC", "-o", counter, COUNTER], check=True)
    environment = {"LD_PRELOAD": str(counter), "TF_CPP_MIN_LOG_LEVEL": "2"}
    expected = {"a copy": 1.0, "array API": 0.0, "eager": 0.0, "in a function": 0.0, "gradients": 1.0}
    for counted in run_ranks(tensorflow_copies.count, 2, nodes=nodes, environment=environment, timeout=120):
        assert counted == pytest.approx(expected), counted
