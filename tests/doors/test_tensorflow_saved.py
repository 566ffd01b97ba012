"""SavedModels of functions with Shoal's operations, in fresh processes: the functions of tensorflow_saved.py."""

from pathlib import Path

import pytest
import tensorflow_saved

from shoal.tensorflow import xla
from shoal.testing import run_ranks

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "SHOAL_TIMEOUT": "20"}
SECONDS = 120.0

has_xla = pytest.mark.skipif(bool(xla.problem()), reason=xla.problem())


@pytest.mark.parametrize(
    "compiled", [pytest.param(False, id="functions"), pytest.param(True, marks=has_xla, id="compiled")]
)
def test_a_saved_model_works_in_another_job(tmp_path: Path, compiled: bool) -> None:
    run_ranks(tensorflow_saved.write, 2, str(tmp_path), compiled, environment=QUIET, timeout=SECONDS)
    run_ranks(tensorflow_saved.read, 2, str(tmp_path), environment=QUIET, timeout=SECONDS)
    if compiled:
        for message in run_ranks(
            tensorflow_saved.read_with_more_ranks, 3, str(tmp_path), environment=QUIET, timeout=SECONDS
        ):
            assert "for 2 ranks, and this is 3 ranks" in message


@has_xla
def test_what_cannot_be_ordered_in_what_is_saved_says_so(tmp_path: Path) -> None:
    for message in run_ranks(
        tensorflow_saved.refuse_what_cannot_be_ordered, 2, str(tmp_path), environment=QUIET, timeout=SECONDS
    ):
        assert "cannot be ordered in what is saved" in message
        assert "leave out jit_compile" in message
