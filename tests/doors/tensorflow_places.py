"""Several places of one program where gradients are averaged, and ranks that differ there. test_tensorflow.py runs it."""

import re
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios

import shoal.tensorflow as shoal
from shoal import Group, ShoalError
from shoal.tensorflow.averaging import average

scenario = Scenarios(lambda: shoal.init())

SOON = 5.0


def run_all() -> dict[str, str]:
    return scenario.run_each()


def mean_of_ranks() -> float:
    return (shoal.size() - 1) / 2


def in_turn(x: Any, place: int) -> Any:
    """The value, which on some ranks takes longer than on others, and longer at some places."""
    slow = (shoal.rank() + place) % 2 == 0
    return tf.numpy_function(lambda value: (time.sleep(0.02 * slow), value)[1], [x], x.dtype, stateful=False)


@scenario
def two_losses_of_one_variable_keep_their_gradients() -> None:
    variable = tf.Variable(tf.ones([3]))

    @tf.function
    def both() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            first = tf.reduce_sum(variable * tf.ensure_shape(in_turn(tf.ones([3]), 0), [3]))
            second = tf.reduce_sum(variable * tf.ensure_shape(in_turn(100.0 * tf.ones([3]), 1), [3]))
        wrapped = shoal.DistributedGradientTape(tape)
        return wrapped.gradient(first, variable), wrapped.gradient(second, variable)

    for _ in range(4):
        first, second = both()
        assert first.numpy().tolist() == [1.0] * 3
        assert second.numpy().tolist() == [100.0] * 3


@scenario
def a_gradient_of_another_size_than_it_said_is_named_whole() -> None:
    def step() -> Any:
        size = 3 + shoal.rank() % 2
        x = tf.numpy_function(lambda: np.ones(size, np.float32), [], tf.float32)
        x.set_shape([3])
        return average([x], ["x"])

    step.__name__ = "long" * 100
    with pytest.raises(tf.errors.OpError) as raised:
        tf.function(step)()
    if shoal.rank() % 2:
        place = rf"gradient 0 of '{step.__name__}.gradients0' on rank {shoal.rank()} \(\S+\) has 16 bytes, and had 12"
        assert re.search(place, raised.value.message), raised.value.message


@scenario
def two_losses_of_one_table_keep_their_gradients() -> None:
    table = tf.Variable(tf.ones([shoal.size() + 1, 2]))

    @tf.function
    def both() -> Any:
        results = []
        for place, factor in enumerate((1.0, 100.0)):
            with tf.GradientTape() as tape:
                weights = tf.ensure_shape(in_turn(tf.fill([2, 2], factor), place), [2, 2])
                loss = tf.reduce_sum(tf.gather(table, [shoal.rank(), shoal.size()]) * weights)
            gradient = shoal.DistributedGradientTape(tape).gradient(loss, table)
            assert isinstance(gradient, tf.IndexedSlices)
            results.append(tf.convert_to_tensor(gradient))
        return results

    for _ in range(4):
        first, second = both()
        assert np.allclose(first[-1], 1.0)
        assert np.allclose(second[-1], 100.0)
        assert np.allclose(first[0], 1 / shoal.size())


@scenario
def two_losses_through_one_operation_keep_their_gradients() -> None:
    @tf.function
    def both(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            shared = shoal.allreduce(x)
            first = tf.reduce_sum(shared * tf.ensure_shape(in_turn(tf.ones([2]), 0), [2]))
            second = tf.reduce_sum(shared * tf.ensure_shape(in_turn(100.0 * tf.ones([2]), 1), [2]))
        return tape.gradient(first, x), tape.gradient(second, x)

    for _ in range(4):
        first, second = both(tf.ones([2]))
        assert first.numpy().tolist() == [1.0, 1.0]
        assert second.numpy().tolist() == [100.0, 100.0]


@scenario
def a_name_that_is_given_twice_in_a_function_keeps_its_order() -> None:
    @tf.function
    def both(x: Any) -> Any:
        first = shoal.allreduce(tf.ensure_shape(in_turn(x, 0), [2]), name="given")
        second = shoal.allreduce(tf.ensure_shape(in_turn(100.0 * x, 1), [2]), name="given")
        return first, second

    for _ in range(4):
        first, second = both(tf.ones([2]))
        assert first.numpy().tolist() == [1.0, 1.0]
        assert second.numpy().tolist() == [100.0, 100.0]


@scenario
def gradients_that_depend_on_averaged_ones_end() -> None:
    """As sharpness-aware minimization has it."""
    for _ in range(5):
        variable = tf.Variable([1.0, 2.0])

        @tf.function
        def step(variable: Any = variable) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * variable)
            first = shoal.DistributedGradientTape(tape).gradient(loss, variable)
            variable.assign_add(first)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * variable)
            return shoal.DistributedGradientTape(tape).gradient(loss, variable)

        assert step().numpy().tolist() == [6.0, 12.0]


@scenario
def a_function_that_is_called_twice_in_another_keeps_its_order() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return average([x, x + 1.0], ["first", "second"])

    @tf.function
    def outer(x: Any) -> Any:
        one = inner(tf.ensure_shape(in_turn(x, 0), [2]))
        other = inner(tf.ensure_shape(in_turn(100.0 * x, 1), [2]))
        return one[0], other[1]

    for _ in range(4):
        one, other = outer(tf.ones([2]))
        assert one.numpy().tolist() == [1.0, 1.0]
        assert other.numpy().tolist() == [101.0, 101.0]


@scenario
def averages_have_gradients() -> None:
    factor = float(shoal.rank() + 1)

    def second_order(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(x * x * x) * factor
            gradient = shoal.DistributedGradientTape(inner).gradient(loss, x)
            penalty = tf.reduce_sum(gradient)
        return outer.gradient(penalty, x)

    for function in (second_order, tf.function(second_order)):
        assert np.allclose(function(tf.constant([1.0, 2.0])), np.array([6.0, 12.0]) * factor)


@scenario
def gradients_that_differ_in_a_later_step_are_said_at_once() -> None:
    average([tf.ones([2])], ["before"])
    others = {
        "another shape": tf.ones([2, 3]) if shoal.rank() else tf.ones([3, 2]),
        "sparse": tf.IndexedSlices(tf.ones([1, 2]), [0], [3, 2]) if shoal.rank() else tf.ones([3, 2]),
        "none": None if shoal.rank() else tf.ones([3, 2]),
        "another dtype": tf.ones([2], tf.float32 if shoal.rank() else tf.float64),
    }
    for name, gradient in others.items():
        begun = time.monotonic()
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"do not have the same gradients.*{name}"):
            average([gradient, tf.ones([2])], [name, "same"])
        assert time.monotonic() - begun < SOON
        assert average([tf.fill([2], float(shoal.rank()))], ["before"])[0].numpy().tolist() == [mean_of_ranks()] * 2


@scenario
def variables_that_differ_are_said_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(tf.errors.FailedPreconditionError, match="do not have the same variables"):
        shoal.broadcast_variables([tf.Variable([1.0])] * (1 + (shoal.rank() == 1)))
    assert time.monotonic() - begun < SOON
    variable = tf.Variable([float(shoal.rank())])
    shoal.broadcast_variables([variable], root=1)
    assert variable.numpy().tolist() == [1.0]


@scenario
def a_step_that_breaks_off_with_sparse_gradients_leaves_none_behind() -> None:
    @tf.function
    def step(x: Any) -> Any:
        slices = tf.IndexedSlices(tf.debugging.check_numerics(x, "not a number"), [0, 1], [2, 2])
        return tf.convert_to_tensor(average([slices, tf.ones([3])], ["sparse", "dense"])[0])

    for value in (1.0, 2.0, 3.0):
        broken = float("nan") if shoal.rank() == 1 else value
        with pytest.raises(tf.errors.OpError):
            step(tf.fill([2, 2], broken))
        assert np.allclose(step(tf.fill([2, 2], value)), value)


@scenario
def images_are_normalised_together() -> None:
    x = (np.random.default_rng(3).normal(size=(shoal.size(), 4, 5, 5, 3)) + shoal.rank()).astype(np.float32)
    everyones = shoal.allgather(tf.constant(x[shoal.rank()]))
    layer, plain = shoal.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    ours, theirs = layer(tf.constant(x[shoal.rank()]), training=True), plain(everyones, training=True)
    assert np.allclose(ours, theirs[4 * shoal.rank() : 4 * shoal.rank() + 4], atol=1e-4)
    assert np.allclose(layer.moving_mean, plain.moving_mean, atol=1e-5)
    assert layer.get_config().keys() <= plain.get_config().keys()
    with pytest.raises(NotImplementedError, match="with a group"):
        shoal.SyncBatchNormalization(group=Group(range(shoal.size()))).get_config()


@scenario
def a_group_of_the_job_before_is_refused() -> None:
    old = Group(range(shoal.size()))
    used = tf.function(lambda x: shoal.allreduce(x, group=old))
    used(tf.ones([2]))
    shoal.shutdown()
    shoal.init()
    Group([shoal.rank()])
    with pytest.raises(ShoalError, match="earlier job"):
        shoal.allreduce(tf.ones([2]), group=old)
    with pytest.raises(tf.errors.FailedPreconditionError, match="made for another job"):
        used(tf.ones([2]))
    assert average([tf.fill([2], float(shoal.rank()))], ["new"])[0].numpy().tolist() == [mean_of_ranks()] * 2
