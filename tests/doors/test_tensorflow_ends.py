"""How TensorFlow's door behaves where ranks are late or lost, processes end, and TensorFlow is not as expected."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import shoal.tensorflow as shoal
from shoal.tensorflow import library, xla
from shoal.tensorflow.averaging import average
from shoal.testing import Cluster, run_ranks

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "SHOAL_TIMEOUT": "20"}
SECONDS = 120.0


# What makes of a function what is called.
WAYS: dict[str, Callable[[Any], Any]] = {
    "eagerly": lambda function: function,
    "in a function": tf.function,
    "compiled by XLA": lambda function: tf.function(function, jit_compile=True),
}
of_xla = pytest.param("compiled by XLA", marks=pytest.mark.skipif(bool(xla.problem()), reason=xla.problem()))
in_functions = pytest.mark.parametrize("way", ["in a function", of_xla])
in_each_way = pytest.mark.parametrize("way", ["eagerly", "in a function", of_xla])


def wait_for_a_rank_that_dies(way: str) -> str:
    shoal.init()
    function = WAYS[way](lambda x: average([x, shoal.allreduce(x, name="both")], ["a", "b"]))
    function(tf.ones([1000]))
    if shoal.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tf.errors.UnknownError) as raised:
        function(tf.ones([1000]))
    return str(raised.value)


@in_functions
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_rank_that_dies_is_named_on_every_other(nodes: int, way: str) -> None:
    with Cluster(3, nodes=nodes, environment=QUIET) as cluster:
        outcomes = cluster.start(wait_for_a_rank_that_dies, way).wait(SECONDS)
    for rank in (0, 2):
        assert outcomes[rank].exit_code == 0, outcomes[rank].stderr
        assert "rank 1" in outcomes[rank].value


# What is called, and what an error calls it.
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an operation": (lambda x: shoal.allreduce(x, name="alone"), "'alone'"),
    "gradients": (lambda x: average([x], ["alone"]), "gradients"),
}


def wait_for_a_rank_that_never_calls(way: str, call: str, heard: Path) -> str:
    shoal.init()
    if shoal.rank() == 1:
        while not heard.exists():
            time.sleep(0.1)
        return "late"
    try:
        with pytest.raises(tf.errors.UnknownError) as raised:
            WAYS[way](CALLS[call][0])(tf.ones([3]))
    finally:
        heard.touch()
    return str(raised.value)


@in_functions
@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_does_not_call_is_named_when_the_time_is_up(call: str, way: str, tmp_path: Path) -> None:
    limited = {**QUIET, "SHOAL_TIMEOUT": "3"}
    given = (way, call, tmp_path / "heard")
    message = run_ranks(wait_for_a_rank_that_never_calls, 2, *given, environment=limited, timeout=SECONDS)[0]
    assert CALLS[call][1] in message
    assert "rank 1" in message
    assert "has not called it" in message


def call_in_opposite_orders_with_one_thread() -> list[float]:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    shoal.init()

    @tf.function
    def one_after_the_other(x: Any) -> Any:
        results = {}
        for place in range(7, -1, -1):
            with tf.control_dependencies(list(results.values())):
                results[place] = shoal.allreduce(x + float(place), name=f"place{place}")
        return tf.stack([results[place] for place in range(8)])

    @tf.function
    def all_at_once(x: Any) -> Any:
        return tf.stack([shoal.allreduce(x + float(place), name=f"place{place}") for place in range(8)])

    function = one_after_the_other if shoal.rank() else all_at_once
    found: list[float] = function(tf.constant(1.0)).numpy().tolist()
    return found


def test_none_of_tensorflows_threads_waits() -> None:
    """With one thread, an operation that waited in it would keep back the one that the other rank waits for."""
    expected = [place + 1.0 for place in range(8)]
    assert run_ranks(call_in_opposite_orders_with_one_thread, 2, environment=QUIET, timeout=SECONDS) == [expected] * 2


def exit_with_calls_in_flight(way: str) -> None:
    shoal.init()
    shoal.allreduce(tf.ones([3]))
    if shoal.rank() == 0:
        function = WAYS[way](lambda x: [shoal.allreduce(x, name="for ever"), average([x], ["a"])])
        threading.Thread(target=function, args=[tf.ones([3])], daemon=True).start()
        time.sleep(2)


@in_functions
def test_a_process_that_exits_in_the_middle_ends(way: str) -> None:
    with Cluster(2, environment=QUIET) as cluster:
        outcomes = cluster.start(exit_with_calls_in_flight, way).wait(SECONDS)
    for outcome in outcomes:
        assert outcome.exit_code in (0, 1), outcome.stderr
        assert "terminate called" not in outcome.stderr
        assert "Fatal Python error" not in outcome.stderr


def call_after_the_end(way: str) -> list[str]:
    shoal.init()
    functions = {
        "total": WAYS[way](lambda x: shoal.allreduce(x, name="total")),
        "rows": WAYS[way](lambda x: shoal.allgather(x, name="rows")),
    }
    for function in functions.values():
        function(tf.ones([2]))
    shoal.shutdown()
    messages = []
    for name, function in functions.items():
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"'{name}'") as raised:
            function(tf.ones([2]))
        messages.append(str(raised.value))
    return messages


@in_each_way
def test_a_call_after_shutdown_says_what_to_do(way: str) -> None:
    for messages in run_ranks(call_after_the_end, 2, way, environment=QUIET, timeout=SECONDS):
        assert all("shoal.init()" in message for message in messages)


def work_with_another_layout() -> None:
    shoal.init()
    library.native.shoal_tensorflow_distrust(1)

    @tf.function
    def step(x: Any) -> Any:
        return [shoal.allreduce(x, "sum"), shoal.allgather(x), *average([x, x * 2.0], ["x", "twice"])]

    for _ in range(3):
        total, rows, first, second = step(tf.fill([4], float(shoal.rank())))
        assert np.array_equal(total, np.ones(4))
        assert np.array_equal(rows, np.repeat([0.0, 1.0], 4))
        assert np.array_equal(first, np.full(4, 0.5))
        assert np.array_equal(second, np.ones(4))


def test_a_build_with_another_layout_gets_the_slow_path_and_one_warning() -> None:
    with Cluster(2, environment=QUIET) as cluster:
        outcomes = cluster.start(work_with_another_layout).wait(SECONDS)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.stderr.count("each occupies one of TensorFlow's threads") == 1


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def take_many_steps() -> float:
    shoal.init()

    @tf.function
    def step(x: Any) -> Any:
        gradients = average([x * float(place) for place in range(5)], [f"gradient{place}" for place in range(5)])
        return tf.add_n([tf.reduce_sum(each) for each in gradients]) + tf.reduce_sum(shoal.allgather(x))

    x = tf.ones([200_000])
    for number in range(300):
        if number == 50:
            before = resident_mb()
        step(x)
    return resident_mb() - before


def test_steps_leave_no_memory_behind() -> None:
    """A step has 4 MB of gradients and gathers 1.6: what 250 of them left would be a gigabyte and more."""
    assert max(run_ranks(take_many_steps, 2, environment=QUIET, timeout=SECONDS)) < 40
