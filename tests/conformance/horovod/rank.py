"""One rank of a job that runs tests of Horovod's own, to which ``import horovod`` is Shoal's door (run.py starts it):

    python rank.py CHECKOUT RESULTS FILE [TEST ...]

Appends a line of JSON to RESULTS.<rank> before and after each test. Of the checkout only the test and two helpers of the tests
are used; of two packages which those want, ``mock`` is Python's own, and ``parameterized`` a few lines here.
"""

import functools
import importlib.util
import json
import os
import sys
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.horovod import aliases

# What Horovod itself puts into the environment of its ranks; the tests then leave the job after each test.
for ours, theirs in (("RANK", "HOROVOD_RANK"), ("WORLD_SIZE", "HOROVOD_SIZE")):
    os.environ[theirs] = os.environ[ours]

# They want horovod.tensorflow, and use nothing of it but process sets, which are the same with any framework. Where there is no
# TensorFlow, they get PyTorch's.
OF_PROCESS_SETS = ("test_process_sets_static.py", "test_process_sets_multi_comm.py")

# Horovod has Adasum over MPI alone, so these ask whether there is MPI. They ask for Adasum.
OF_ADASUM = ("test_adasum_pytorch.py", "test_adasum_tensorflow.py")

# The class that the tests of a file are in, to run some of them.
CLASSES = {
    "test_torch.py": "TorchTests",
    "test_adasum_pytorch.py": "TorchAdasumTests",
    "test_tensorflow.py": "TensorFlowTests",
    "test_tensorflow_process_sets.py": "TensorFlowProcessSetsTests",
    "test_tensorflow_process_sets_dynamic.py": "TensorFlowProcessSetsDynamicTests",
    "test_adasum_tensorflow.py": "TensorFlowAdasumTests",
    "test_tensorflow2_keras.py": "Tf2KerasTests",
    "test_tensorflow2_keras_process_sets.py": "Tf2KerasProcessSetsTests",
    "test_tensorflow_keras.py": "TfKerasTests",
    "test_keras.py": "KerasTests",
}


class Report:
    """A plugin of pytest's.

    Tests of TensorFlow's run twice, in a graph and eagerly, as subtests: one that is skipped in both is a skipped one.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._of_subtests: list[tuple[str, str]] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Horovod skips one of its tests, since it fails there now and then; it is to run here."""
        for item in items:
            if item.name == "test_timeline_api":
                item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._of_subtests = []
        self._write(nodeid, "began", "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", report.longreprtext[-3000:])
        elif hasattr(report, "context"):
            self._of_subtests.append((report.outcome, _reason(report)))
        elif report.skipped:
            self._write(report.nodeid, "skipped", _reason(report))
        elif report.when == "call":
            skipped = [why for outcome, why in self._of_subtests if outcome == "skipped"]
            is_whole = skipped and len(skipped) == len(self._of_subtests)
            self._write(report.nodeid, "skipped" if is_whole else "passed", skipped[0] if is_whole else "")

    def _write(self, nodeid: str, outcome: str, why: str) -> None:
        self._file.write(json.dumps({"test": nodeid.rpartition("::")[2], "outcome": outcome, "why": why}) + "\n")


def _reason(report: Any) -> str:
    return str(report.longrepr[2]).removeprefix("Skipped: ") if report.skipped else ""


class Parameterized:
    """The package's decorator, as far as the tests use it: a test runs once with each list of arguments, as subtests."""

    @staticmethod
    def expand(cases: list[list[Any]]) -> Callable[[Callable[..., None]], Callable[[Any], None]]:
        def of_test(function: Callable[..., None]) -> Callable[[Any], None]:
            @functools.wraps(function)
            def run_each(self: Any) -> None:
                for case in cases:
                    with self.subTest(case=case):
                        function(self, *case)

            # What pytest asks for arguments is this function, not that one.
            del run_each.__wrapped__  # type: ignore[attr-defined]
            return run_each

        return of_test


def prepare(checkout: Path, file: str) -> None:
    aliases.install()
    sys.modules["mock"] = unittest.mock
    sys.modules["parameterized"] = ModuleType("parameterized")
    sys.modules["parameterized"].parameterized = Parameterized  # type: ignore[attr-defined]
    for name in ("", ".util", ".common", ".common.util", ".common.util.env"):
        sys.modules[f"horovod.runner{name}"] = ModuleType(f"horovod.runner{name}")
    sys.modules["horovod.runner.common.util.env"].get_env_rank_and_size = rank_and_size  # type: ignore[attr-defined]
    path = checkout / "horovod" / "runner" / "util" / "threads.py"
    spec = importlib.util.spec_from_file_location("horovod.runner.util.threads", path)
    assert spec is not None
    assert spec.loader is not None
    threads = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(threads)
    sys.modules[spec.name] = threads
    if file in OF_PROCESS_SETS and importlib.util.find_spec("tensorflow") is None:
        import shoal.horovod
        import shoal.horovod.torch as torchs

        sys.modules["horovod.tensorflow"] = shoal.horovod.tensorflow = torchs  # type: ignore[attr-defined]
    if "tensorflow" in file or "keras" in file:
        as_of_their_time()
    if file in OF_ADASUM:
        door: Any = importlib.import_module("shoal.horovod." + ("tensorflow" if "tensorflow" in file else "torch"))
        door.mpi_enabled = lambda: True


def as_of_their_time() -> None:
    """Gives TensorFlow and Keras what the tests of 2023 ask them for and what they have no more: none of it is what they test."""
    import keras
    import tensorflow as tf
    from tensorflow.python.client import session

    # By this two tests of graphs of version 1 know whether there are such graphs. Their optimizers are for its variables.
    tf.ConfigProto = tf.compat.v1.ConfigProto
    tf.compat.v1.train.Optimizer._resource_apply_dense = lambda self, grad, var: self._apply_dense(grad, var)

    if not hasattr(keras, "Variable"):  # Keras 2 is of their time
        return

    class Reference:
        """A variable as a key."""

        def __init__(self, variable: Any) -> None:
            self._variable = variable

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Reference) and self._variable is other._variable

        def __hash__(self) -> int:
            return id(self._variable)

    keras.Variable.ref = lambda self: Reference(self)
    session.register_session_run_conversion_functions(
        keras.Variable, lambda variable: ([variable.value], lambda values: values[0])
    )
    without(keras.layers.BatchNormalization, "__init__", {"fused": None})

    class ThresholdedReLU(keras.layers.Layer):
        def __init__(self, theta: float) -> None:
            super().__init__()
            self._theta = theta

        def call(self, inputs: Any) -> Any:
            return inputs * keras.ops.cast(inputs > self._theta, inputs.dtype)

    tf.keras.layers.ThresholdedReLU = ThresholdedReLU
    tf.keras.losses.mean_squared_error = tf.keras.losses.MSE
    without(keras.Model, "compile", {"experimental_run_tf_function": None})
    for optimizer in (keras.optimizers.Adam, keras.optimizers.RMSprop, keras.optimizers.SGD):
        without(optimizer, "__init__", {"lr": "learning_rate"})
    keras.optimizers.Optimizer.lr = property(lambda self: self.learning_rate)


def without(kind: type, method: str, renamed: dict[str, str | None]) -> None:
    """A method of a class takes these arguments under their new names, or drops them."""
    own = getattr(kind, method)

    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        for before, now in renamed.items():
            value = options.pop(before, None)
            if value is not None and now is not None:
                options[now] = value
        return own(self, *arguments, **options)

    # Not as one that wraps it: Keras looks at the names of arguments.
    setattr(kind, method, called)


def rank_and_size() -> tuple[int, int]:
    """As Horovod's launcher has put them into the environment."""
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])


def main() -> int:
    checkout, results, file, *tests = sys.argv[1:]
    prepare(Path(checkout), file)
    path = Path(checkout) / "test" / "parallel" / file
    kind = CLASSES.get(file, "")
    chosen = [f"{path}::{kind}::{test}" for test in tests] if tests and kind else [str(path)]
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(path.parent)]
    pytest.main([*options, *chosen], plugins=[Report(Path(f"{results}.{os.environ['RANK']}"))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
