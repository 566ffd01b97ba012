"""How TensorFlow's door behaves where ranks are late or lost, processes end, and TensorFlow is not as expected."""

import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import shoal.tensorflow as shoal
from shoal.tensorflow import library
from shoal.tensorflow.averaging import average
from shoal.testing import Cluster, run_ranks

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "SHOAL_TIMEOUT": "20"}
SECONDS = 120.0


def wait_for_a_rank_that_dies() -> str:
    shoal.init()
    function = tf.function(lambda x: average([x, shoal.allreduce(x, name="both")], ["a", "b"]))
    function(tf.ones([1000]))
    if shoal.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tf.errors.UnknownError) as raised:
        function(tf.ones([1000]))
    return str(raised.value)


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
        time.sleep(4)
        return "late"
    with pytest.raises(tf.errors.UnknownError) as raised:
        tf.function(lambda: shoal.allreduce(tf.ones([3]), name="alone"))()
    return str(raised.value)


def test_a_rank_that_does_not_call_is_named_when_the_time_is_up() -> None:
    message = run_ranks(
        wait_for_a_rank_that_never_calls, 2, environment={**QUIET, "SHOAL_TIMEOUT": "2"}, timeout=SECONDS
    )[0]
    assert "'alone'" in message
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


def exit_with_an_operation_in_flight() -> None:
    shoal.init()
    shoal.allreduce(tf.ones([3]))
    if shoal.rank() == 0:
        function = tf.function(lambda: shoal.allreduce(tf.ones([3]), name="for ever"))
        threading.Thread(target=function, daemon=True).start()
        time.sleep(0.5)


def test_a_process_that_exits_in_the_middle_ends() -> None:
    with Cluster(2, environment=QUIET) as cluster:
        outcomes = cluster.start(exit_with_an_operation_in_flight).wait(SECONDS)
    for outcome in outcomes:
        assert outcome.exit_code in (0, 1), outcome.stderr
        assert "terminate called" not in outcome.stderr
        assert "Fatal Python error" not in outcome.stderr


def shut_down_in_the_middle() -> str:
    shoal.init()
    shoal.allreduce(tf.ones([3]))
    shoal.shutdown()
    with pytest.raises(tf.errors.AbortedError) as raised:
        shoal.allreduce(tf.ones([3]), name="after the end")
    return str(raised.value)


def test_a_call_after_shutdown_says_what_to_do() -> None:
    for message in run_ranks(shut_down_in_the_middle, 2, environment=QUIET, timeout=SECONDS):
        assert "'after the end'" in message
        assert "shoal.init()" in message


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
