"""Horovod's API for TensorFlow with real ranks: the scenarios of horovod_tensorflow_*.py."""

import subprocess
import sys
from pathlib import Path

import horovod_tensorflow_operations
import horovod_tensorflow_training
import pytest
from scenarios import failures

from shoal.testing import run_ranks

RANKS = 4
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "SHOAL_TIMEOUT": "20"}


@pytest.fixture(scope="module")
def operations() -> list[dict[str, str]]:
    return run_ranks(horovod_tensorflow_operations.run_all, RANKS, nodes=2, servers=1, environment=QUIET, timeout=300)


@pytest.mark.parametrize("name", horovod_tensorflow_operations.scenario.functions)
def test_operations(operations: list[dict[str, str]], name: str) -> None:
    assert not failures(operations, name), failures(operations, name)


@pytest.fixture(scope="module")
def training() -> list[dict[str, str]]:
    return run_ranks(horovod_tensorflow_training.run_all, 2, environment=QUIET, timeout=300)


@pytest.mark.parametrize("name", horovod_tensorflow_training.scenario.functions)
def test_training(training: list[dict[str, str]], name: str) -> None:
    assert not failures(training, name), failures(training, name)


SCRIPT = """
import horovod.tensorflow as hvd
import shoal.horovod.tensorflow
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import rank_op
from horovod.tensorflow.util import _executing_eagerly

assert hvd is shoal.horovod.tensorflow and Compression is hvd.Compression and rank_op is hvd.rank_op
hvd.init()
import tensorflow as tf
print(hvd.rank(), hvd.size(), hvd.allreduce(tf.ones([2])).numpy().tolist(), _executing_eagerly())
"""


def test_a_script_that_is_not_changed_finds_horovod(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "shoal.horovod", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.stdout == "0 1 [1.0, 1.0] True\n", done.stderr
