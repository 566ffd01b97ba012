"""TensorFlow's door in what XLA compiles, with real ranks: the scenarios of tensorflow_xla*.py. test_tensorflow_ends.py has how jobs end."""

import pytest
import tensorflow as tf
import tensorflow_xla
import tensorflow_xla_training
from scenarios import failures

import shoal.tensorflow as shoal
from shoal.tensorflow import xla
from shoal.tensorflow.averaging import average
from shoal.testing import run_ranks

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "SHOAL_TIMEOUT": "20"}
SECONDS = 120.0
has_xla = pytest.mark.skipif(bool(xla.problem()), reason=xla.problem())

# Nodes, servers, what ranks run.
PLACES = {
    "two nodes and a server": (2, 1, tensorflow_xla.run_all),
    "one machine": (1, 0, tensorflow_xla.run_all),
    "three nodes without futures": (3, 0, tensorflow_xla.run_without_futures),
}


@pytest.fixture(scope="module", params=PLACES)
def results(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    nodes, servers, function = PLACES[request.param]
    return run_ranks(function, 3, nodes=nodes, servers=servers, environment=QUIET, timeout=300)


@has_xla
@pytest.mark.parametrize("name", tensorflow_xla.scenario.functions)
def test_collectives(results: list[dict[str, str]], name: str) -> None:
    assert not failures(results, name), failures(results, name)


# Ranks, nodes, servers.
TRAINING_PLACES = {"four nodes and two servers": (4, 4, 2), "one machine": (4, 1, 0)}


@pytest.fixture(scope="module", params=TRAINING_PLACES)
def training(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    ranks, nodes, servers = TRAINING_PLACES[request.param]
    return run_ranks(
        tensorflow_xla_training.run_all, ranks, nodes=nodes, servers=servers, environment=QUIET, timeout=400
    )


@has_xla
@pytest.mark.parametrize("name", tensorflow_xla_training.scenario.functions)
def test_training(training: list[dict[str, str]], name: str) -> None:
    assert not failures(training, name), failures(training, name)


@pytest.mark.skipif(not xla.problem(), reason="this TensorFlow's XLA can call Shoal")
def test_a_version_that_cannot_says_so() -> None:
    for name in ("allreduce", "gradients"):
        assert name in run_ranks(refused, 2, environment=QUIET, timeout=SECONDS)[0][name]


def refused() -> dict[str, str]:
    shoal.init()
    functions = {"allreduce": shoal.allreduce, "gradients": lambda x: average([x], ["a"])}
    messages = {}
    for name, function in functions.items():
        with pytest.raises(NotImplementedError, match=r"cannot be compiled by XLA.*leave out jit_compile") as raised:
            tf.function(function, jit_compile=True)(tf.ones([3]))
        messages[name] = str(raised.value)
    return messages
