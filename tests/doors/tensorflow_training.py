"""Training with TensorFlow's door ends where one process ends that has all ranks' batches. test_tensorflow.py runs it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios

import shoal.tensorflow as shoal
from shoal.tensorflow.averaging import average

scenario = Scenarios(lambda: shoal.init())

STEPS, BATCH, RATE = 12, 8, 0.02
CLOSE = 1e-5


def run_all() -> dict[str, str]:
    tf.config.threading.set_inter_op_parallelism_threads(2)
    return scenario.run_each()


def batches(ranks: slice) -> list[tuple[Any, Any]]:
    """By step, the batches of these ranks one after the other."""
    numbers = np.random.default_rng(0)
    size = shoal.size()
    x = numbers.normal(size=(STEPS, size, BATCH, 5)).astype(np.float32)
    y = np.tanh(x.sum(-1, keepdims=True)).astype(np.float32)
    return [(x[step, ranks].reshape(-1, 5), y[step, ranks].reshape(-1, 1)) for step in range(STEPS)]


class Network:
    """Three layers; one gradient is sparse."""

    def __init__(self) -> None:
        numbers = np.random.default_rng(1)

        def made(name: str, *shape: int) -> Any:
            return tf.Variable(numbers.normal(size=shape).astype(np.float32) * 0.3, name=name)

        self.table = made("table", 7, 5)
        self.first, self.bias = made("first", 5, 300), made("bias", 300)
        self.second, self.last = made("second", 300, 40), made("last", 40, 1)
        self.variables = [self.table, self.first, self.bias, self.second, self.last]

    def loss(self, x: Any, y: Any) -> Any:
        rows = tf.cast(tf.abs(x[:, 0]) * 3.0, tf.int32) % 7
        hidden = tf.tanh((x + tf.gather(self.table, rows)) @ self.first + self.bias)
        return tf.reduce_mean(tf.square(tf.tanh(hidden @ self.second) @ self.last - y))


def train(step_of: Callable[[Network], Callable[[Any, Any], Any]], ranks: slice) -> list[Any]:
    network = Network()
    step = step_of(network)
    for x, y in batches(ranks):
        step(tf.constant(x), tf.constant(y))
    return [variable.numpy() for variable in network.variables]


def by_tape(wrap: Callable[[Any], Any], compiled: bool) -> Callable[[Network], Callable[[Any, Any], Any]]:
    def step_of(network: Network) -> Callable[[Any, Any], Any]:
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = network.loss(x, y)
            gradients = wrap(tape).gradient(loss, network.variables)
            for gradient, variable in zip(gradients, network.variables, strict=True):
                if isinstance(gradient, tf.IndexedSlices):
                    variable.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))
                else:
                    variable.assign_sub(RATE * gradient)

        return tf.function(step) if compiled else step

    return step_of


def alone() -> list[Any]:
    return train(by_tape(lambda tape: tape, True), slice(None))


def assert_same(trained: list[Any], expected: list[Any]) -> None:
    """Close to one process, and the same bits on every rank."""
    for ours, theirs in zip(trained, expected, strict=True):
        assert np.max(np.abs(ours - theirs)) < CLOSE
    bits = np.concatenate([each.reshape(-1).view(np.int32) for each in trained])
    assert np.array_equal(shoal.allreduce(bits, "max"), bits)
    assert np.array_equal(shoal.allreduce(bits, "min"), bits)


def mine() -> slice:
    return slice(shoal.rank(), shoal.rank() + 1)


@scenario
def eager_training_ends_where_one_process_does() -> None:
    step = by_tape(shoal.DistributedGradientTape, False)
    trained = train(step, mine())
    assert_same(trained, alone())
    assert all(map(np.array_equal, trained, train(step, mine()))), "a second run has other bits"


@scenario
def training_in_a_function_ends_where_one_process_does() -> None:
    step = by_tape(shoal.DistributedGradientTape, True)
    trained = train(step, mine())
    assert_same(trained, alone())
    assert all(map(np.array_equal, trained, train(step, mine()))), "a second run has other bits"


@scenario
def sparse_gradients_may_be_made_dense() -> None:
    def wrap(tape: Any) -> Any:
        return shoal.DistributedGradientTape(tape, sparse_as_dense=True)

    assert_same(train(by_tape(wrap, True), mine()), alone())


@scenario
def a_loop_of_steps_in_one_function_is_the_same() -> None:
    network = Network()
    step = by_tape(shoal.DistributedGradientTape, False)(network)
    xs, ys = (tf.stack(each) for each in zip(*batches(mine()), strict=True))

    @tf.function
    def all_steps() -> None:
        for number in tf.range(STEPS):
            step(xs[number], ys[number])

    all_steps()
    assert_same([variable.numpy() for variable in network.variables], alone())


@scenario
def the_optimizer_of_tensorflow_1_and_its_session_end_where_one_process_does() -> None:
    """The program of Horovod's paper, Listing 1, but for the names."""
    x, y = (np.stack(each) for each in zip(*batches(mine()), strict=True))
    with tf.Graph().as_default():
        network = Network()
        place = tf.compat.v1.placeholder(tf.int32, [])
        if shoal.rank():  # which the hook has to mend
            network.bias.assign(tf.ones_like(network.bias))
        loss = network.loss(tf.constant(x)[place], tf.constant(y)[place])
        optimizer = shoal.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(RATE))
        step = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())
        hooks = [shoal.BroadcastGlobalVariablesHook(0)]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for number in range(STEPS):
                session.run(step, {place: number})
            trained = session.run(network.variables)
    assert_same(trained, alone())


@scenario
def local_gradients_stay_and_are_scaled() -> None:
    network = Network()
    x, y = batches(mine())[0]
    with tf.GradientTape(persistent=True) as tape:
        loss = network.loss(tf.constant(x), tf.constant(y))
    own = tape.gradient(loss, network.variables)
    averaged = shoal.DistributedGradientTape(tape).gradient(loss, network.variables)
    partial = shoal.PartialDistributedGradientTape(tape, [network.first])
    mixed = partial.gradient(loss, network.variables)
    assert np.allclose(mixed[1] * shoal.size(), own[1])
    assert np.array_equal(mixed[3], averaged[3])
    unscaled = shoal.PartialDistributedGradientTape(tape, [network.first], scale_local_gradients=False)
    assert np.array_equal(unscaled.gradient(loss, network.variables)[1], own[1])


@scenario
def a_local_layer_may_get_its_variables_while_the_tape_records() -> None:
    layer, other = (tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2))
    with shoal.PartialDistributedGradientTape(tf.GradientTape(), [layer]) as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 1])) + other(tf.ones([1, 1]))) * float(shoal.rank())
    own, averaged = tape.gradient(loss, [*layer.trainable_variables, *other.trainable_variables])
    assert own.numpy().tolist() == [[shoal.rank() / shoal.size()]]
    assert averaged.numpy().tolist() == [[(shoal.size() - 1) / 2]]


@scenario
def gradients_come_in_the_form_of_the_sources() -> None:
    weight, other = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(weight) * float(shoal.rank())
    wrapped = shoal.DistributedGradientTape(tape)
    mean = (shoal.size() - 1) / 2
    assert wrapped.gradient(loss, weight).numpy().tolist() == [mean, mean]
    assert wrapped.gradient(loss, {"a": weight, "b": other})["b"] is None
    assert wrapped.gradient(loss, [other]) == [None]
    with shoal.DistributedGradientTape(tf.GradientTape()) as entered:
        loss = tf.reduce_sum(weight) * float(shoal.rank())
    assert entered.gradient(loss, [weight])[0].numpy().tolist() == [mean, mean]


@scenario
def variables_begin_as_on_the_root() -> None:
    variables = [
        tf.Variable(tf.fill([3], float(shoal.rank()))),
        tf.Variable(shoal.rank()),
        tf.Variable(shoal.rank() == 1),
    ]
    shoal.broadcast_variables(variables, root=1)
    assert [variable.numpy().tolist() for variable in variables] == [[1.0, 1.0, 1.0], 1, True]
    with pytest.raises(TypeError, match="is of string"):
        shoal.broadcast_variables([tf.Variable("text")])


@scenario
def batches_are_normalised_together() -> None:
    numbers = np.random.default_rng(2)
    x = (numbers.normal(size=(shoal.size(), 6, 4, 3)) + 5).astype(np.float32)
    factor = numbers.normal(size=(6, 4, 3)).astype(np.float32)

    def outcome(layer: Any, given: Any, ranks: int) -> tuple[Any, ...]:
        given = tf.constant(given)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(given)
            result = layer(given, training=True)
            loss = tf.reduce_sum(tf.reshape(result, [-1, 6, 4, 3]) * factor) / ranks
        scale = tape.gradient(loss, layer.gamma)
        return result, tape.gradient(loss, given), scale, layer.moving_variance

    plain = outcome(tf.keras.layers.BatchNormalization(), x.reshape(-1, 4, 3), shoal.size())
    ours = outcome(shoal.SyncBatchNormalization(), x[shoal.rank()], 1)
    rows = slice(6 * shoal.rank(), 6 * shoal.rank() + 6)
    assert np.allclose(ours[0], plain[0][rows], atol=1e-4)
    assert np.allclose(ours[1], shoal.size() * plain[1][rows], atol=1e-3)
    assert np.allclose(shoal.allreduce(ours[2]), plain[2], atol=1e-4)
    assert np.allclose(ours[3], plain[3])


@scenario
def ranks_with_other_gradients_hear_which() -> None:
    variable = tf.Variable(tf.ones([3 + (shoal.rank() == 1)]), name="unequal")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0 .*unequal.*\[3\].*rank 1 .*\[4\]"):
        shoal.DistributedGradientTape(tape).gradient(loss, [variable])


@scenario
def a_step_that_breaks_off_ends_on_every_rank_and_the_next_one_is_right() -> None:
    step = tf.function(average_of)
    for value in (1.0, 2.0):
        assert step(tf.fill([4], value))[1].numpy().tolist() == [3.0 * value] * 4
        broken = tf.fill([4], float("nan") if shoal.rank() == 1 else 1.0)
        with pytest.raises(tf.errors.OpError) as raised:
            step(broken)
        text = "not a number" if shoal.rank() == 1 else "broke off before all gradients were there"
        assert text in str(raised.value)
    assert step(tf.fill([4], 5.0))[0].numpy().tolist() == [2.0] * 4


def average_of(x: Any) -> Any:
    gradients = [tf.ones_like(x) * 2.0, tf.debugging.check_numerics(x * 3.0, "not a number")]
    return average(gradients, ["first", "second"])
