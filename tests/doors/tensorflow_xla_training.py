"""Training that XLA compiles ends where one process ends that has all ranks' batches. test_tensorflow_xla.py runs it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios
from tensorflow_training import RATE, STEPS, Network, alone, assert_same, batches, by_tape, mine, train

import shoal.tensorflow as shoal
from shoal.tensorflow.averaging import average

scenario = Scenarios(lambda: shoal.init())


def run_all() -> dict[str, str]:
    tf.config.threading.set_inter_op_parallelism_threads(2)
    return scenario.run_each()


def compiled(wrap: Callable[[Any], Any]) -> Callable[[Network], Callable[[Any, Any], Any]]:
    return lambda network: tf.function(by_tape(wrap, False)(network), jit_compile=True)


@scenario
def compiled_training_ends_where_one_process_does() -> None:
    """One gradient is sparse."""
    step = compiled(shoal.DistributedGradientTape)
    trained = train(step, mine())
    assert_same(trained, alone())
    assert all(map(np.array_equal, trained, train(step, mine()))), "a second run has other bits"


@scenario
def sparse_gradients_may_be_made_dense() -> None:
    def wrap(tape: Any) -> Any:
        return shoal.DistributedGradientTape(tape, sparse_as_dense=True)

    assert_same(train(compiled(wrap), mine()), alone())


@scenario
def a_loop_of_steps_in_one_program_is_the_same() -> None:
    network = Network()
    step = by_tape(lambda tape: shoal.DistributedGradientTape(tape, sparse_as_dense=True), False)(network)
    xs, ys = (tf.stack(each) for each in zip(*batches(mine()), strict=True))

    @tf.function(jit_compile=True)
    def all_steps(xs: Any, ys: Any) -> None:
        for number in tf.range(STEPS):
            step(xs[number], ys[number])

    all_steps(xs, ys)
    assert_same([variable.numpy() for variable in network.variables], alone())


@scenario
def steps_of_one_place_in_one_program_are_not_taken_for_each_other() -> None:
    @tf.function
    def averaged(x: Any) -> Any:
        return average([x, x * 2.0], ["first", "second"])

    @tf.function(jit_compile=True)
    def twice(x: Any) -> Any:
        return averaged(x), averaged(x * 10.0)

    for _ in range(4):
        results = twice(tf.fill([3000], float(shoal.rank())))
        assert [[float(part[0]) for part in each] for each in results] == [[1.5, 3.0], [15.0, 30.0]]


@scenario
def keras_compiles_its_step() -> None:
    """An optimizer of Keras's own, by the tape."""
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(STEPS, shoal.size(), 8, 6)).astype(np.float32)
    y = np.tanh(x.sum(-1, keepdims=True)).astype(np.float32)

    def trained(ranks: slice, wrap: Callable[[Any], Any]) -> list[Any]:
        tf.keras.utils.set_random_seed(5)
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(70, "tanh"), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(RATE, momentum=0.9)
        optimizer.build(model.trainable_variables)

        @tf.function(jit_compile=True)
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            optimizer.apply_gradients(
                zip(wrap(tape).gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )

        for number in range(STEPS):
            step(x[number, ranks].reshape(-1, 6), y[number, ranks].reshape(-1, 1))
        return [np.asarray(weight) for weight in model.get_weights()]

    assert_same(trained(mine(), shoal.DistributedGradientTape), trained(slice(None), lambda tape: tape))


@scenario
def averages_have_gradients() -> None:
    @tf.function(jit_compile=True)
    def second(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            (averaged,) = average([x * x], ["square"])
            loss = tf.reduce_sum(averaged) * float(shoal.rank())
        return outer.gradient(loss, x)

    mean = (shoal.size() - 1) / 2
    assert np.allclose(second(tf.ones([3])), 2.0 * mean)


@scenario
def ranks_with_other_gradients_hear_which() -> None:
    variable = tf.Variable(tf.ones([3 + (shoal.rank() == 1)]), name="unequal")

    @tf.function(jit_compile=True)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * 2.0)
        return shoal.DistributedGradientTape(tape).gradient(loss, [variable])

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0 .*unequal.*\[3\].*rank 1 .*\[4\]"):
        step()


@scenario
def a_rank_where_a_gradient_is_sparse_and_another_where_it_is_not_hear_it() -> None:
    table = tf.Variable(tf.ones([5, 3]), name="table")

    @tf.function(jit_compile=True)
    def step() -> Any:
        with tf.GradientTape() as tape:
            used = tf.gather(table, [0, 1]) if shoal.rank() == 1 else table * 2.0
            loss = tf.reduce_sum(used)
        return shoal.DistributedGradientTape(tape).gradient(loss, [table])

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 1 .*table.*sparse"):
        step()


@scenario
def batches_are_normalised_together() -> None:
    x = (np.random.default_rng(2).normal(size=(shoal.size(), 6, 3)) + 5).astype(np.float32)
    layer, plain = shoal.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    layer.build([None, 3])
    result = tf.function(lambda x: layer(x, training=True), jit_compile=True)(x[shoal.rank()])
    expected = plain(x.reshape(-1, 3), training=True)
    rows = slice(6 * shoal.rank(), 6 * shoal.rank() + 6)
    assert np.allclose(result, expected[rows], atol=1e-4)
