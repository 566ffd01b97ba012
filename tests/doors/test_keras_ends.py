"""Keras's door: how jobs end, that two runs are alike, what is imported, and the example."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras_ends
import keras_training
import pytest
from keras_backends import of_keras_3, on_each
from test_keras import environment

from shoal.testing import Cluster, run_ranks

ROOT = Path(__file__).parents[2]
SECONDS = 200

pytestmark = of_keras_3
backends = pytest.mark.parametrize("backend", on_each())


@backends
@pytest.mark.parametrize("how", ["killed", "raises"])
def test_the_end_of_a_rank_is_an_error_that_names_it_on_the_others(backend: str, how: str) -> None:
    with Cluster(2, environment=environment(backend)) as cluster:
        left, ended = cluster.start(keras_ends.train, how).wait(SECONDS)
    assert ended.exit_code != 0
    assert left.exit_code == 1, left.describe()
    told = f"{left.exception}\n{left.traceback}\n{left.stderr}"
    # On TensorFlow gradients travel in buffers.
    operation = r"\S*gradients\d*\.\S+" if backend == "tensorflow" else "gradient/small/(first|second)/(kernel|bias)"
    assert re.search(rf"allreduce\w* (of )?'{operation}'.*rank 1 ", told), told
    if how == "raises":
        assert "ArithmeticError: the loss is infinite" in told


@backends
def test_a_gradient_of_another_shape_is_an_error_that_names_it_on_all_ranks(backend: str) -> None:
    with Cluster(2, environment=environment(backend)) as cluster:
        outcomes = cluster.start(keras_ends.train_other_shapes).wait(SECONDS)
    for outcome in outcomes:
        assert outcome.exit_code == 1, outcome.describe()
        told = f"{outcome.exception}\n{outcome.traceback}\n{outcome.stderr}"
        assert re.search(r"rank 1 .*the gradient of 'weights' has shape \(5,\), and its variable \(4,\)", told), told


@backends
@pytest.mark.parametrize("gains", [False, True])
def test_a_gradient_that_one_rank_alone_has_in_a_later_step_is_an_error_that_names_it(
    backend: str, gains: bool
) -> None:
    longer = {**environment(backend), "SHOAL_TIMEOUT": "600"}
    with Cluster(2, environment=longer) as cluster:
        outcomes = cluster.start(keras_ends.lose_a_gradient, gains).wait(SECONDS)
    for outcome in outcomes:
        assert outcome.exit_code == 1, outcome.describe()
        told = f"{outcome.exception}\n{outcome.traceback}\n{outcome.stderr}"
        assert re.search(r"do not have the same gradients.*sometimes|'gradient/sometimes'.*ranks disagree", told), told


@backends
def test_two_runs_are_alike(backend: str) -> None:
    runs = [
        run_ranks(keras_training.digest_after_training, 2, environment=environment(backend), timeout=SECONDS)
        for _ in range(2)
    ]
    assert len({digest for run in runs for digest in run}) == 1


@backends
def test_nothing_of_another_backend_is_imported(backend: str) -> None:
    others = sorted({"tensorflow", "torch"} - {backend})
    code = (
        "import sys, keras, shoal.keras\n"
        "shoal.keras.DistributedOptimizer(keras.optimizers.SGD(0.1))\n"
        f"assert keras.backend.backend() == {backend!r}\n"
        f"found = [name for name in {others} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment(backend)}, check=True, timeout=SECONDS
    )


@backends
def test_the_example_trains_digits_and_matches_a_single_process(backend: str, tmp_path: Path) -> None:
    program = ["examples/keras_digits.py", "--epochs", "4", "--save", str(tmp_path / "best.keras")]
    run = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "run", "-n", "2", "--nodes", "2", *program],
        cwd=ROOT,
        env={**os.environ, **environment(backend)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    accuracies = re.findall(r"test accuracy, .*: +([\d.]+) %", run.stdout)
    assert len(accuracies) == 2, run.stdout
    assert all(float(accuracy) >= 90 for accuracy in accuracies), run.stdout
    difference = re.search(r"largest relative difference .*: ([\d.e+-]+)", run.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-4
    assert (tmp_path / "best.keras").stat().st_size > 0
