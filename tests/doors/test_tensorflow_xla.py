"""TensorFlow's door in what XLA compiles, with real ranks: the scenarios of tensorflow_xla*.py, and how jobs end."""

import os
import signal
import threading
import time
from typing import Any

import pytest
import tensorflow as tf
import tensorflow_xla
import tensorflow_xla_training
from scenarios import failures

import shoal.tensorflow as shoal
from shoal.tensorflow import xla
from shoal.tensorflow.averaging import average
from shoal.testing import Cluster, run_ranks

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


def both(x: Any) -> Any:
    return average([x, shoal.allreduce(x, name="both")], ["a", "b"])


def wait_for_a_rank_that_dies() -> str:
    shoal.init()
    function = tf.function(both, jit_compile=True)
    function(tf.ones([1000]))
    if shoal.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tf.errors.UnknownError) as raised:
        function(tf.ones([1000]))
    return str(raised.value)


@has_xla
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_rank_that_dies_is_named_on_every_other(nodes: int) -> None:
    with Cluster(3, nodes=nodes, environment=QUIET) as cluster:
        outcomes = cluster.start(wait_for_a_rank_that_dies).wait(SECONDS)
    for rank in (0, 2):
        assert outcomes[rank].exit_code == 0, outcomes[rank].stderr
        assert "rank 1" in outcomes[rank].value


def wait_for_a_rank_that_never_calls() -> str:
    shoal.init()
    if shoal.rank() == 1:
        time.sleep(6)
        return "late"
    with pytest.raises(tf.errors.UnknownError) as raised:
        tf.function(lambda x: average([x], ["alone"]), jit_compile=True)(tf.ones([3]))
    return str(raised.value)


@has_xla
def test_a_rank_that_does_not_call_is_named_when_the_time_is_up() -> None:
    message = run_ranks(
        wait_for_a_rank_that_never_calls, 2, environment={**QUIET, "SHOAL_TIMEOUT": "3"}, timeout=SECONDS
    )[0]
    assert "gradients" in message
    assert "rank 1" in message
    assert "has not called it" in message


def exit_with_calls_in_flight() -> None:
    shoal.init()
    shoal.allreduce(tf.ones([3]))
    if shoal.rank() == 0:
        function = tf.function(lambda x: [shoal.allreduce(x, name="for ever"), average([x], ["a"])], jit_compile=True)
        threading.Thread(target=function, args=[tf.ones([3])], daemon=True).start()
        time.sleep(2)


@has_xla
def test_a_process_that_exits_in_the_middle_ends() -> None:
    with Cluster(2, environment=QUIET) as cluster:
        outcomes = cluster.start(exit_with_calls_in_flight).wait(SECONDS)
    for outcome in outcomes:
        assert outcome.exit_code in (0, 1), outcome.stderr
        assert "terminate called" not in outcome.stderr
        assert "Fatal Python error" not in outcome.stderr


def call_after_the_end() -> str:
    shoal.init()
    function = tf.function(lambda x: shoal.allgather(x, name="rows"), jit_compile=True)
    function(tf.ones([2]))
    shoal.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="'rows'") as raised:
        function(tf.ones([2]))
    return str(raised.value)


@has_xla
def test_a_call_after_shutdown_says_what_to_do() -> None:
    for message in run_ranks(call_after_the_end, 2, environment=QUIET, timeout=SECONDS):
        assert "shoal.init()" in message


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
