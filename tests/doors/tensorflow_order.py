"""Calls that have the same name, in one program: they come in its order on every rank. test_tensorflow.py runs it."""

import gc
import resource
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from scenarios import Scenarios
from tensorflow_places import in_turn

import shoal.tensorflow as stf
from shoal.tensorflow.averaging import average

scenario = Scenarios(lambda: stf.init())

TURNS = 4
LARGE = 2_000_000


def run_all() -> dict[str, str]:
    return scenario.run_each()


@scenario
def a_function_is_called_twice_in_another() -> None:
    weight = tf.Variable([1.0, 1.0])

    @tf.function
    def metric(x: Any) -> Any:
        return stf.allreduce(tf.reduce_sum(weight * x))

    @tf.function
    def evaluate(x: Any) -> Any:
        return metric(in_turn(x, 0)), metric(in_turn(100.0 * x, 1))

    for _ in range(TURNS):
        assert [float(each) for each in evaluate(tf.ones([2]))] == [2.0, 200.0]


@scenario
def two_functions_are_called_alike() -> None:
    weights = [tf.Variable([1.0, 1.0]), tf.Variable([1.0, 1.0])]

    def made(weight: Any) -> Any:
        @tf.function
        def loss(x: Any) -> Any:
            return stf.allreduce(tf.reduce_sum(weight * x))

        return loss

    first, second = map(made, weights)

    @tf.function
    def both(x: Any) -> Any:
        return first(in_turn(x, 0)), second(in_turn(100.0 * x, 1))

    for _ in range(TURNS):
        assert [float(each) for each in both(tf.ones([2]))] == [2.0, 200.0]


@scenario
def gradients_of_a_function_that_is_called_twice_keep_their_places() -> None:
    weight = tf.Variable([1.0, 1.0])

    @tf.function
    def metric(x: Any) -> Any:
        return stf.allreduce(weight * x, "mean")

    @tf.function
    def slopes(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            first, second = metric(x), metric(x)
        return tape.gradient(first, weight, in_turn(x, 0)), tape.gradient(second, weight, in_turn(100.0 * x, 1))

    for _ in range(TURNS):
        first, second = slopes(tf.ones([2]))
        assert first.numpy().tolist() == [1.0, 1.0]
        assert second.numpy().tolist() == [100.0, 100.0]


@scenario
def a_name_comes_again_in_a_branch() -> None:
    @tf.function
    def both(x: Any, condition: Any) -> Any:
        first = stf.allreduce(in_turn(x, 0), name="in a branch")
        other = in_turn(100.0 * x, 1)
        second = tf.cond(condition, lambda: stf.allreduce(other, name="in a branch"), lambda: tf.zeros_like(other))
        return first[0], second[0]

    for _ in range(TURNS):
        assert [float(each) for each in both(tf.ones([2]), tf.constant(True))] == [1.0, 100.0]


@scenario
def a_name_comes_again_in_a_function_that_is_called() -> None:
    weight = tf.Variable([1.0, 1.0])

    @tf.function
    def inner(x: Any) -> Any:
        return stf.allreduce(x * weight, name="inner")

    @tf.function
    def outer(x: Any) -> Any:
        return stf.allreduce(in_turn(x, 0), name="inner")[0], inner(in_turn(100.0 * x, 1))[0]

    for _ in range(TURNS):
        assert [float(each) for each in outer(tf.ones([2]))] == [1.0, 100.0]


@scenario
def one_function_trains_two_models() -> None:
    small, large = tf.Variable(tf.ones([3])), tf.Variable(tf.ones([5]))

    @tf.function
    def train(variable: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        return stf.DistributedGradientTape(tape).gradient(loss, variable)[0]

    @tf.function
    def both(x: Any) -> Any:
        return train(small, in_turn(x, 0)), train(large, in_turn(100.0 * x, 1))

    for _ in range(TURNS):
        assert [float(each) for each in both(tf.constant(1.0))] == [1.0, 100.0]


@scenario
def a_name_comes_again_in_a_graph_of_version_1() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        first = stf.allreduce(in_turn(tf.ones([2]), 0), name="graph")
        second = stf.allreduce(in_turn(tf.fill([2], 100.0), 1), name="graph")
        with v1.Session() as session:
            for _ in range(TURNS):
                assert [float(each[0]) for each in session.run([first, second])] == [1.0, 100.0]


@scenario
def ranks_may_trace_as_often_as_they_like() -> None:
    variable = tf.Variable(tf.ones([3]))

    @tf.function
    def train(_: str) -> Any:
        return average([variable * 1.0], ["variable"])[0]

    def others(first: int, end: int) -> None:
        for size in range(first, end):
            average([tf.ones([size + 1])], [f"other {size}"])

    train("first")
    others(0, 32)
    train("second" if stf.rank() == 0 else "first")
    others(32, 80)
    for _ in range(TURNS):
        assert train("third").numpy().tolist() == [1.0] * 3


@scenario
def functions_go_when_the_program_lets_go_of_them() -> None:
    table, weight = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2]))

    def named() -> Any:
        return tf.function(lambda: stf.allreduce(weight * 1.0, name="named"))

    def trained() -> Any:
        @tf.function
        def gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [1]) * weight)
            return stf.DistributedGradientTape(tape).gradient(loss, [table, weight])

        return gradients

    for make in (named, trained):
        function = make()
        function()
        graph = weakref.ref(function.get_concrete_function().graph)
        del function
        gc.collect()
        assert graph() is None, make.__name__


@scenario
def a_small_gradient_that_is_kept_does_not_keep_the_large_ones() -> None:
    step = tf.function(lambda x: average([x, x[:4]], ["weight", "bias"]))
    x = tf.ones([LARGE])
    for _ in range(3):
        step(x)
    kept = []
    assert _grown_by(lambda: kept.extend(step(x)[1] for _ in range(20))) < 5 * 4 * LARGE
    assert np.allclose(kept, 1.0)


def _grown_by(run: Callable[[], None]) -> int:
    """How many bytes more this process has at its height."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
