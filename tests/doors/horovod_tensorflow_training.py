"""What Horovod's tapes and optimizers for TensorFlow promise, for 2 ranks. test_tensorflow_horovod.py runs them."""

import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios

import shoal.horovod.tensorflow as hvd

scenario = Scenarios(lambda: hvd.init())

v1 = tf.compat.v1
RATE = 0.1


def run_all() -> dict[str, str]:
    return scenario.run_each()


def both(function: Any, *arguments: Any) -> list[Any]:
    """What a function gives eagerly, and what in ``tf.function``."""
    return [function(*arguments), tf.function(function)(*arguments)]


def taped(function: Callable[[Any], Any], sources: Any, **arguments: Any) -> Any:
    """The gradient over all ranks."""
    with tf.GradientTape() as tape:
        result = function(sources)
    return hvd.DistributedGradientTape(tape, **arguments).gradient(result, sources)


def scaled_by_rank(sources: Any) -> Any:
    """Its gradient is 1 on rank 0 and 3 on rank 1, for each of the variables."""
    return sum(tf.reduce_sum(source) for source in sources) * (1.0 + 2.0 * hvd.rank())


@scenario
def a_tape_gives_gradients_of_all_ranks() -> None:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(np.ones((2, 2), np.float64))]
    half = tf.Variable(tf.ones([2], tf.float16))

    def gradients(**arguments: Any) -> list[Any]:
        def of() -> Any:
            return taped(lambda some: scaled_by_rank([some[0], tf.cast(some[1], tf.float32)]), variables, **arguments)

        return both(of)

    for arguments, expected in (
        ({}, 2.0),
        ({"op": hvd.Sum}, 4.0),
        ({"op": hvd.Max}, 3.0),
        ({"op": hvd.Adasum}, 2.0),
        ({"gradient_predivide_factor": 2.0}, 2.0),
        ({"compression": hvd.Compression.fp16}, 2.0),
        ({"groups": 1}, 2.0),
        ({"groups": [[variables[0]]]}, 2.0),
    ):
        for first, second in gradients(**arguments):
            assert np.allclose(first, [expected] * 2), arguments
            assert np.allclose(second, np.full((2, 2), expected)), arguments
            assert (first.dtype, second.dtype) == (tf.float32, tf.float64)
    for result in both(lambda: taped(lambda some: tf.cast(scaled_by_rank(some), tf.float32), [half])[0]):
        assert result.dtype == tf.float16
        assert result.numpy().tolist() == [2.0, 2.0]


@scenario
def a_tape_is_used_as_tensorflows() -> None:
    x, unused = tf.Variable([1.0]), tf.Variable([1.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        y = x * (1.0 + hvd.rank())
    assert isinstance(tape, tf.GradientTape)
    assert tape.gradient(y, x).numpy().tolist() == [1.5]
    first = tape.gradient(y, {"x": x, "unused": unused}, tf.constant([2.0]))
    assert first["x"].numpy().tolist() == [3.0]
    assert first["unused"] is None
    greatest = taped(lambda some: scaled_by_rank(some[1:]), [unused, x], op=hvd.Max)
    assert greatest[0] is None
    assert greatest[1].numpy().tolist() == [3.0]
    assert taped(lambda _: scaled_by_rank([x]), unused, op=hvd.Max) is None
    zero = tape.gradient(y, [unused], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zero[0].numpy().tolist() == [0.0]
    # Made while the other records, too.
    with tf.GradientTape() as recording:
        tape = hvd.DistributedGradientTape(recording)
        z = x * (1.0 + hvd.rank())
    assert tape.gradient(z, x).numpy().tolist() == [1.5]


@scenario
def a_gradient_that_is_none_on_one_rank_alone_is_an_error_on_all() -> None:
    x, y = tf.Variable([1.0]), tf.Variable([1.0])
    for op in (hvd.Average, hvd.Sum, hvd.Max, hvd.Adasum):
        for sources in (x, [x], {"x": x}, [x, y]):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x if hvd.rank() == 0 else y)
            begun = time.monotonic()
            with pytest.raises(
                tf.errors.FailedPreconditionError, match=r"rank 0 .*none.*rank 1 |rank 0 .*rank 1 .*none"
            ):
                hvd.DistributedGradientTape(tape, op=op).gradient(loss, sources)
            assert time.monotonic() - begun < 10


@scenario
def sparse_gradients_stay_sparse_unless_told_otherwise() -> None:
    table = tf.Variable(tf.ones([4, 2]))

    def looked_up(variable: Any) -> Any:
        return tf.reduce_sum(tf.gather(variable[0], [hvd.rank(), 3])) * 2.0

    for result in both(lambda: taped(looked_up, [table])[0]):
        assert isinstance(result, tf.IndexedSlices)
        assert tf.convert_to_tensor(result)[:, 0].numpy().tolist() == [1.0, 1.0, 0.0, 2.0]
    for result in both(lambda: taped(looked_up, [table], sparse_as_dense=True)[0]):
        assert isinstance(result, tf.Tensor)
        assert result[:, 1].numpy().tolist() == [1.0, 1.0, 0.0, 2.0]
    for result in both(lambda: taped(looked_up, [table], gradient_predivide_factor=4.0)[0]):
        assert tf.convert_to_tensor(result)[:, 0].numpy().tolist() == [1.0, 1.0, 0.0, 2.0]


@scenario
def two_tapes_of_one_function_are_told_apart() -> None:
    first, second = tf.Variable([1.0]), tf.Variable([1.0])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as one:
            y = scaled_by_rank([first])
        with tf.GradientTape() as other:
            z = 10.0 * scaled_by_rank([second])
        return (
            hvd.DistributedGradientTape(one).gradient(y, [first])[0],
            hvd.DistributedGradientTape(other).gradient(z, [second])[0],
        )

    for _ in range(5):
        assert [each.numpy().tolist() for each in step()] == [[2.0], [20.0]]


@scenario
def local_sources_keep_their_own_gradients() -> None:
    # Each rank has another one of its own, and one more of them.
    own = [tf.Variable(tf.ones([2 + hvd.rank()])) for _ in range(1 + hvd.rank())]
    common = tf.Variable([1.0])
    sources = [*own, common]
    for scale, expected in ((True, (1.0 + 2.0 * hvd.rank()) / 2), (False, 1.0 + 2.0 * hvd.rank())):
        with tf.GradientTape(persistent=True) as recorded:
            y = scaled_by_rank(sources)
        tape = hvd.DistributedGradientTape(recorded, scale_local_gradients=scale)
        for variable in own:
            tape.register_local_source(variable)
        *locals_, of_common = tape.gradient(y, sources)
        assert of_common.numpy().tolist() == [2.0]
        assert all(np.allclose(each, expected) for each in locals_)
        of_local, of_others = tape.get_local_and_global_gradients(y, sources)
        assert [variable is mine for (variable, _), mine in zip(of_local, own, strict=True)] == [True] * len(own)
        assert of_others[0][0] is common
        assert of_others[0][1].numpy().tolist() == [2.0]


@scenario
def layers_may_be_local() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, kernel_initializer="ones"), tf.keras.layers.Dense(1)])
    model.build([None, 3])
    hvd.broadcast_variables(model.variables, 0)
    with tf.GradientTape(persistent=True) as tape:
        y = tf.reduce_sum(model(tf.ones([1, 3]))) * (1.0 + 2.0 * hvd.rank())
    own = tape.gradient(y, model.trainable_variables)
    partial = hvd.PartialDistributedGradientTape(tape, local_layers=model.layers[0])
    mixed = partial.gradient(y, model.trainable_variables)
    assert np.allclose(mixed[0], own[0] / 2.0)
    assert np.allclose(mixed[2], own[2] * (2.0 / (1.0 + 2.0 * hvd.rank())))
    # A layer that gets its weights while the tape records.
    late = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[late]) as entered:
        y = tf.reduce_sum(late(tf.ones([1, 1]))) * (1.0 + 2.0 * hvd.rank())
    assert np.allclose(entered.gradient(y, late.trainable_variables)[0], (1.0 + 2.0 * hvd.rank()) / 2.0)
    with pytest.raises(ValueError, match="local_layers are layers of Keras'"):
        hvd.PartialDistributedGradientTape(tape, local_layers=["dense"])


@scenario
def ranks_that_are_alone_keep_their_gradients() -> None:
    alone = hvd.add_process_set([0])
    try:
        x = tf.Variable([1.0])
        for result in both(lambda: taped(scaled_by_rank, [x], process_set=alone)[0]):
            assert result.numpy().tolist() == [1.0 + 2.0 * hvd.rank()]
    finally:
        hvd.remove_process_set(alone)


@scenario
def arguments_that_contradict_each_other_are_refused() -> None:
    tape, optimizer = tf.GradientTape(), v1.train.GradientDescentOptimizer(RATE)
    for make, given in ((hvd.DistributedGradientTape, tape), (hvd.DistributedOptimizer, optimizer)):
        with pytest.raises(ValueError, match=r"gradient_predivide_factor is for op=hvd\.Average"):
            make(given, op=hvd.Sum, gradient_predivide_factor=2.0)
        with pytest.raises(ValueError, match="groups is a number of groups"):
            make(given, groups=0)
        with pytest.warns(DeprecationWarning, match="num_groups is deprecated"):
            make(given, num_groups=2)
    with pytest.raises(ValueError, match="average_aggregated_gradients is not for"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="is for graphs"):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    with pytest.raises(TypeError, match="takes an optimizer of"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="op=hvd.Adasum is for optimizers of"):  # noqa: RUF043
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)


@scenario
def an_optimizer_of_version_1_applies_gradients_of_all_ranks() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=[1.0, 1.0])
        y = v1.get_variable("y", initializer=[[1.0]], use_resource=False)
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(RATE, 0.9))
        train = optimizer.minimize(scaled_by_rank([x, y]), global_step=step)
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert np.allclose(session.run(x), 1.0 - RATE * 2.0)
        assert np.allclose(session.run(y), 1.0 - RATE * 2.0)
        assert session.run(step) == 1
        assert optimizer.get_slot_names() == ["momentum"]
        assert np.allclose(session.run(optimizer.get_slot(x, "momentum")), 2.0)
        assert len(optimizer.variables()) == 2


@scenario
def eagerly_it_does_so_too_and_knows_local_variables() -> None:
    x, own = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(RATE), op=hvd.Sum)
    optimizer.register_local_var(own)
    optimizer.minimize(lambda: scaled_by_rank([x, own]), var_list=[x, own])
    assert np.allclose(x, 1.0 - RATE * 4.0)
    assert np.allclose(own, 1.0 - RATE * (1.0 + 2.0 * hvd.rank()) / 2.0)


@scenario
def gradients_of_several_passes_are_added_up_before_they_travel() -> None:
    passes = 3
    for averages in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            given = v1.placeholder(tf.float32, [])
            x, own = v1.get_variable("x", initializer=[0.0]), v1.get_variable("own", initializer=[0.0])
            table = v1.get_variable("table", initializer=[[0.0]])
            loss = given * tf.reduce_sum(x + own) + given * tf.reduce_sum(tf.gather(table, [0]))
            step = v1.train.get_or_create_global_step()
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0),
                backward_passes_per_step=passes,
                average_aggregated_gradients=averages,
                sparse_as_dense=True,
            )
            optimizer.register_local_var(own)
            train = optimizer.minimize(loss, global_step=step)
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            total = mine = 0.0
            for index in range(2 * passes + 1):
                session.run(train, {given: index + hvd.rank()})
                total, mine = total + index + 0.5, mine + index + hvd.rank()
                if (index + 1) % passes == 0:
                    applied, own_applied = total, mine / 2.0
                if index + 1 >= passes:
                    divisor = passes if averages else 1
                    assert np.allclose(session.run([x, table[0]]), -applied / divisor), index
                    assert np.allclose(session.run(own), -own_applied / divisor), index
                else:
                    assert session.run(x).tolist() == [0.0]
                assert session.run(step) == index + 1
    with tf.Graph().as_default():
        table = v1.get_variable("table", initializer=[[0.0]])
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
        with pytest.raises(ValueError, match="IndexedSlices are not added up"):
            optimizer.minimize(tf.reduce_sum(tf.gather(table, [0])))


@scenario
def adasum_combines_what_optimizers_have_changed() -> None:
    target = np.array([1.0, 0.0]) if hvd.rank() == 0 else np.array([0.5, 1.0])
    for passes in (1, 2):
        expected = np.array([3.0, 3.0])
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.get_variable("x", initializer=[1.0, 2.0])
            begin = x.assign([3.0, 3.0])  # as a broadcast does it, after the initialisation
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(RATE), op=hvd.Adasum, backward_passes_per_step=passes
            )
            train = optimizer.minimize(tf.reduce_sum(tf.square(x - target)) / 2.0)
            session.run(v1.global_variables_initializer())
            session.run(begin)
            for _ in range(3):
                for _ in range(passes):
                    session.run(train)
                changes = [((1 - RATE) ** passes - 1) * (expected - to) for to in ([1.0, 0.0], [0.5, 1.0])]
                dot = changes[0] @ changes[1]
                expected = expected + sum((1 - dot / (2 * (each @ each))) * each for each in changes)
                assert np.allclose(session.run(x), expected), (passes, session.run(x), expected)
    x = tf.Variable([3.0, 3.0])
    optimizer = hvd.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(RATE), op=hvd.Adasum, backward_passes_per_step=2
    )
    for _ in range(6):
        optimizer.minimize(lambda: tf.reduce_sum(tf.square(x - target)) / 2.0, var_list=[x])
    assert np.allclose(x, expected)


def made_model() -> Any:
    layers = [tf.keras.layers.Dense(4, activation="tanh", kernel_initializer="ones"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.build([None, 3])
    model.set_weights([np.linspace(-0.5, 0.5, weight.size).reshape(weight.shape) for weight in model.get_weights()])
    return model


def batches(steps: int) -> tuple[Any, Any]:
    """Of shape (steps, ranks, batch, ...)."""
    x = np.random.default_rng(0).normal(size=(steps, 2, 8, 3)).astype(np.float32)
    return x, np.sin(x.sum(-1, keepdims=True))


@scenario
def an_optimizer_of_keras_trains_as_one_process_does() -> None:
    x, y = batches(6)
    alone = made_model()
    alone.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse")
    alone.fit(x.reshape(-1, 3), y.reshape(-1, 1), batch_size=16, shuffle=False, verbose=0)
    for eagerly in (False, True):
        model = made_model()
        optimizer = tf.keras.optimizers.Adam(0.01)
        assert hvd.DistributedOptimizer(optimizer) is optimizer
        assert isinstance(optimizer, tf.keras.optimizers.Adam)
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=eagerly)
        mine = x[:, hvd.rank()].reshape(-1, 3), y[:, hvd.rank()].reshape(-1, 1)
        model.fit(*mine, batch_size=8, shuffle=False, verbose=0)
        for weight, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
            assert np.allclose(weight, expected, atol=1e-5)
        flat = np.concatenate([weight.ravel() for weight in model.get_weights()])
        assert np.ptp(hvd.allgather(flat[None]), axis=0).max() == 0.0
    with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        assert type(tf.keras.models.load_model(path).optimizer) is tf.keras.optimizers.Adam


IS_KERAS_3 = hasattr(tf.keras, "Variable")


def added_up(own_optimizer: Any, eagerly: bool) -> tuple[list[float], Any, Any]:
    """What a variable is after each of 5 passes; the local one, and the optimizer."""
    x, own = ((tf.keras.Variable if IS_KERAS_3 else tf.Variable)([0.0]) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(own_optimizer, backward_passes_per_step=2, average_aggregated_gradients=True)
    optimizer.register_local_var(own)

    def step(given: Any) -> None:
        optimizer.apply_gradients([(given, x), (given, own)])

    run, seen = step if eagerly else tf.function(step), []
    for index in range(5):
        run(tf.constant([index + 2.0 * hvd.rank()]))
        seen.append(float(x.numpy()[0]))
    return seen, own, optimizer


@scenario
def an_optimizer_of_keras_adds_up_several_passes() -> None:
    classes = [tf.keras.optimizers.SGD, *([] if IS_KERAS_3 else [tf.keras.optimizers.legacy.SGD])]
    for optimizer_class, eagerly in product(classes, (False, True)):
        seen, own, optimizer = added_up(optimizer_class(1.0), eagerly)
        assert seen == [0.0, -1.5, -1.5, -5.0, -5.0]
        assert np.allclose(own.numpy(), -(0.5 + 2.5 + 4.0 * hvd.rank()) / 2.0)
        assert int(optimizer.iterations) == 5


@scenario
def batches_of_all_ranks_are_normalised_together() -> None:
    x = np.random.default_rng(1).normal(size=(2, 6, 3)).astype(np.float32) * 3.0 + 1.0
    plain, synchronised = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization(fused=False, axis=-1)
    expected = plain(x.reshape(-1, 3), training=True)
    result = synchronised(tf.constant(x[hvd.rank()]), training=True)
    assert np.allclose(result, expected[6 * hvd.rank() : 6 * hvd.rank() + 6], atol=1e-5)
    assert np.allclose(synchronised.moving_variance, plain.moving_variance, atol=1e-5)
    with pytest.raises(ValueError, match="no fused form"):
        hvd.SyncBatchNormalization(fused=True)


@scenario
def a_session_begins_with_the_variables_of_the_root() -> None:
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=[float(hvd.rank())])
        v1.train.get_or_create_global_step()
        hook = hvd.BroadcastGlobalVariablesHook(1, device="/cpu:0")
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(x).tolist() == [1.0]
