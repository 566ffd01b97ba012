"""TensorFlow's door where a process joins one job after the other: the functions of tensorflow_jobs.py."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow_jobs

from shoal.tensorflow import xla
from shoal.testing import run_ranks

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "SHOAL_TIMEOUT": "20"}
SECONDS = 200.0

COMPILED = pytest.param(True, marks=pytest.mark.skipif(bool(xla.problem()), reason=xla.problem()), id="compiled")


@pytest.mark.parametrize("compiled", [pytest.param(False, id="functions"), COMPILED])
@pytest.mark.parametrize(
    "function",
    [
        tensorflow_jobs.after_a_job_of_more_ranks,
        tensorflow_jobs.after_a_job_of_this_rank_alone,
        tensorflow_jobs.as_another_rank,
        tensorflow_jobs.of_a_job_that_is_over,
    ],
)
def test_a_function_in_a_later_job_is_right_or_says_what_to_do(
    function: Callable[[bool], None], compiled: bool
) -> None:
    run_ranks(function, 3, compiled, environment=QUIET, timeout=SECONDS)


def test_a_graph_of_version_1_too() -> None:
    run_ranks(
        tensorflow_jobs.in_a_graph_of_version_1,
        3,
        environment=QUIET,
        timeout=SECONDS,
    )


LOADS = """
import sys
import tensorflow as tf
print(tf.saved_model.load(sys.argv[1]).step(tf.constant([[1.0, 2.0]])).numpy().tolist())
assert not [name for name in sys.modules if name.startswith("shoal")]
"""


def test_averages_of_one_rank_are_compiled_and_saved_as_without_shoal(tmp_path: Path) -> None:
    run_ranks(
        tensorflow_jobs.averages_of_one_rank_leave_nothing_of_ours,
        1,
        str(tmp_path / "saved"),
        environment=QUIET,
        timeout=SECONDS,
    )
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "saved")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "[[2.0, 4.0]]\n", done.stderr
