"""Horovod's API for Keras with real ranks: the scenarios of horovod_keras*.py, and scripts that say ``import horovod``."""

import subprocess
import sys
from pathlib import Path

import horovod_keras
import horovod_keras_branches
import horovod_keras_steps
import pytest
from scenarios import failures

from shoal.testing import run_ranks

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "SHOAL_TIMEOUT": "40"}


@pytest.fixture(scope="module")
def results() -> list[dict[str, str]]:
    return run_ranks(horovod_keras.run_all, 2, environment=QUIET, timeout=400)


@pytest.mark.parametrize("name", horovod_keras.scenario.functions)
def test_keras(results: list[dict[str, str]], name: str) -> None:
    assert not failures(results, name), failures(results, name)


@pytest.fixture(scope="module")
def steps() -> list[dict[str, str]]:
    return run_ranks(horovod_keras_steps.run_all, 2, environment=QUIET, timeout=400)


@pytest.mark.parametrize("name", horovod_keras_steps.scenario.functions)
def test_gradients_are_combined_once(steps: list[dict[str, str]], name: str) -> None:
    assert not failures(steps, name), failures(steps, name)


@pytest.fixture(scope="module")
def branches() -> list[dict[str, str]]:
    return run_ranks(horovod_keras_branches.run_all, 2, environment=QUIET, timeout=400)


@pytest.mark.parametrize("name", horovod_keras_branches.scenario.functions)
def test_gradients_are_combined_once_in_branches_and_loops(branches: list[dict[str, str]], name: str) -> None:
    assert not failures(branches, name), failures(branches, name)


SCRIPT = """
import horovod.keras as hvd
import horovod.tensorflow.keras as same
import shoal.horovod.keras
from horovod.keras.callbacks import MetricAverageCallback
from horovod.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback
from tensorflow import keras

assert hvd is shoal.horovod.keras and same.load_model is hvd.load_model
hvd.init()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), keras.losses.MeanSquaredError())
callbacks = [BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
model.fit(hvd.allgather([[1.0, 2.0]]), hvd.allgather([[3.0]]), callbacks=callbacks, verbose=0)
try: from horovod.keras.elastic import CommitStateCallback
except ImportError: print("no elastic")
try: import horovod.keras.estimator
except ModuleNotFoundError as error: print(error)
print(same.rank(), same.size(), float(same.allreduce(2.0)))
"""


def test_a_script_that_is_not_changed_finds_horovod(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "shoal.horovod", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    *missing, last = done.stdout.splitlines()
    assert last == "0 1 2.0", done.stderr
    assert missing[0] == "no elastic"
    assert missing[1].startswith("horovod.keras.estimator has no counterpart in shoal.horovod")
