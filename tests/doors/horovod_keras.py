"""What Horovod's API for Keras promises, for 2 ranks. test_keras_horovod.py runs it."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios

import shoal
import shoal.horovod.keras
import shoal.horovod.tensorflow.keras as hvd

scenario = Scenarios(lambda: hvd.init())
keras = tf.keras
IS_KERAS_3 = hasattr(keras, "ops")


def run_all() -> dict[str, str]:
    return scenario.run_each()


def all_have(values: Any) -> bool:
    """Whether all ranks have the same bits."""
    flat = np.concatenate([np.ravel(np.asarray(value, np.float64)) for value in values])
    return bool(np.ptp(hvd.allgather(flat[None]), axis=0).max() == 0.0)


def values_of(variables: Any) -> list[Any]:
    return [variable.numpy() for variable in variables]


def made_model(seed: int, layers: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(4, activation="tanh") for _ in range(layers)]
    return keras.Sequential([keras.layers.Input((3,)), *hidden, keras.layers.Dense(1)])


def batches(steps: int = 6) -> tuple[Any, Any]:
    """Of shape (steps, ranks, batch, ...)."""
    x = np.random.default_rng(0).normal(size=(steps, 2, 8, 3)).astype(np.float32)
    return x, np.sin(x.sum(-1, keepdims=True))


def mine() -> tuple[Any, Any]:
    x, y = batches()
    return x[:, hvd.rank()].reshape(-1, 3), y[:, hvd.rank()].reshape(-1, 1)


def fitted(model: Any, optimizer: Any, callbacks: Any = (), epochs: int = 2, **options: Any) -> Any:
    model.compile(optimizer, keras.losses.MeanSquaredError(), **options)
    given = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": epochs}
    return model.fit(*mine(), callbacks=list(callbacks), **given).history


class Seen(keras.callbacks.Callback):
    """What the callbacks before it have left."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Any] = []
        self.rates: list[float] = []
        self.logs: list[dict[str, float]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.weights:
            self.weights = values_of(self.model.weights)
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


@scenario
def both_names_have_the_same() -> None:
    other = shoal.horovod.keras
    assert set(other.__all__) == set(hvd.__all__)
    assert all(
        getattr(other, name) is getattr(hvd, name) for name in hvd.__all__ if name not in ("callbacks", "elastic")
    )
    assert other.callbacks.MetricAverageCallback is hvd.callbacks.MetricAverageCallback
    assert hvd.gloo_built()
    assert not any((hvd.mpi_built(), hvd.nccl_built(), hvd.cuda_built(), hvd.rocm_built()))
    assert (hvd.size(), hvd.local_size(), hvd.cross_rank()) == (2, 1, hvd.rank())


@scenario
def values_are_combined() -> None:
    rank = hvd.rank()
    assert float(hvd.allreduce(rank + 1.0)) == 1.5
    assert float(hvd.allreduce(rank + 1.0, name="sum", average=False)) == 3.0
    assert float(hvd.allreduce(rank + 1.0, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)) == 3.0
    half = hvd.allreduce(np.full(2, 1 / 3 + rank, np.float32), compression=hvd.Compression.fp16)
    assert 0.0 < abs(float(half[0]) - (1 / 3 + 0.5)) < 1e-3
    assert hvd.allgather([rank] * (rank + 1), name="rows").numpy().tolist() == [0, 1, 1]
    assert hvd.broadcast([rank + 5, rank], root_rank=1).numpy().tolist() == [6, 1]
    rows = hvd.reducescatter(np.arange(4.0) * (rank + 1), op=hvd.Sum).numpy().tolist()
    assert rows == [[0.0, 3.0], [6.0, 9.0]][rank]
    with pytest.raises(RuntimeError, match="outside a graph there are no global variables"):
        hvd.broadcast_global_variables(0)


@scenario
def a_graph_of_version_1_gives_arrays() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=[1.0 + hvd.rank()])
        session.run(v1.global_variables_initializer())
        hvd.broadcast_global_variables(1)
        assert session.run(x).tolist() == [2.0]
        assert hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum) == 3.0


@scenario
def get_gradients_of_a_class_of_the_programs_own_is_of_a_process_set() -> None:
    class OfTheProgram(keras.optimizers.SGD):  # type: ignore[misc]
        def get_gradients(self, loss: Any, params: Any) -> list[Any]:
            return [tf.constant([1.0 + hvd.rank()]) for _ in params]

    alone = hvd.add_process_set([0])
    for process_set, expected in ((hvd.global_process_set, 1.5), (alone, 1.0 + hvd.rank())):
        x = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(OfTheProgram(1.0), process_set=process_set)
        (gradient,) = optimizer.get_gradients(None, [x])
        optimizer.apply_gradients([(gradient, x)])
        assert (float(gradient[0]), float(x.numpy()[0])) == (expected, -expected)
    hvd.remove_process_set(alone)


@scenario
def the_model_is_that_of_one_process() -> None:
    x, y = batches()
    alone = made_model(1)
    alone.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
    alone.fit(x.reshape(-1, 3), y.reshape(-1, 1), batch_size=16, shuffle=False, verbose=0, epochs=2)
    for eagerly in (False, True):
        model = made_model(hvd.rank() + 1)
        optimizer = keras.optimizers.Adam(0.01)
        assert hvd.DistributedOptimizer(optimizer, name="mine", groups=2) is optimizer
        seen = Seen()
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), seen]
        fitted(model, optimizer, callbacks, run_eagerly=eagerly)
        assert all_have(seen.weights)
        assert all_have(values_of(model.weights))
        for weight, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
            assert np.allclose(weight, expected, atol=1e-5)
        assert all_have([each["loss"] for each in seen.logs])


@scenario
def a_loss_scale_belongs_inside() -> None:
    """Else each rank would skip steps by its own gradients."""
    make = (keras.optimizers if IS_KERAS_3 else keras.mixed_precision).LossScaleOptimizer
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback
    refused = pytest.raises(ValueError, match=r"outermost.*DistributedOptimizer\(keras.optimizers.LossScaleOptimizer")
    if IS_KERAS_3:
        with refused:
            make(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    # Made distributed when it was inside already.
    late = make(keras.optimizers.SGD(0.01))
    hvd.DistributedOptimizer(late.inner_optimizer)
    with refused:
        fitted(made_model(1), late, [callback(0)])
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        # Keras puts one around it.
        with refused:
            fitted(made_model(1), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), [callback(0)])
        model = made_model(hvd.rank())
        optimizer = hvd.DistributedOptimizer(make(keras.optimizers.SGD(0.01), initial_scale=64.0))
        fitted(model, optimizer, [callback(0)], epochs=1)
        assert model.optimizer is optimizer
        before = values_of(model.trainable_variables)
        # Infinite on one rank alone.
        model.fit(np.full((8, 3), np.inf if hvd.rank() == 1 else 1.0), np.ones((8, 1)), batch_size=8, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert all_have(before)
    assert all(np.array_equal(*pair) for pair in zip(values_of(model.trainable_variables), before, strict=True))
    scale = optimizer.dynamic_scale if IS_KERAS_3 else optimizer.loss_scale
    assert float(scale.numpy()) == 32.0


@scenario
def a_step_that_was_compiled_before_is_found_out() -> None:
    for callback in (hvd.callbacks.MetricAverageCallback(), hvd.callbacks.BroadcastGlobalVariablesCallback(0)):
        model = made_model(1)
        fitted(model, keras.optimizers.SGD(0.1), epochs=1)
        model.optimizer = hvd.DistributedOptimizer(model.optimizer)
        with pytest.raises(RuntimeError, match=r"were not averaged.*model.compile again"):
            model.fit(*mine(), batch_size=8, verbose=0, callbacks=[callback])
        fitted(model, model.optimizer, [callback], epochs=1)


@scenario
def one_gradient_for_each_variable() -> None:
    if IS_KERAS_3:
        x, y = keras.Variable([0.0]), keras.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        with pytest.raises(ValueError, match="given 1 gradients for 2 variables"):
            optimizer.apply([tf.constant([1.0])], [x, y])


@scenario
def several_passes_are_added_up() -> None:
    for average, rate in ((True, 1.0), (False, 0.5)):
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(rate), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        x = tf.Variable([0.0])

        @tf.function
        def step(given: Any, optimizer: Any = optimizer, x: Any = x) -> None:
            optimizer.apply_gradients(optimizer.compute_gradients(lambda: x * given, [x]))

        seen = []
        for index in range(5):
            step(tf.constant([index + 2.0 * hvd.rank()]))
            seen.append(float(x.numpy()[0]))
        assert seen == [0.0, -1.5, -1.5, -5.0, -5.0]
        assert int(optimizer.iterations.numpy()) == 5
        assert int(optimizer._agg_helper.counter.numpy()) == 1


@scenario
def layers_may_be_local() -> None:
    for scales in (True, False):
        model = made_model(3, layers=2)
        local, *_ = model.layers
        optimizer = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(0.1), local_layers=local, scale_local_gradients=scales
        )
        x, y = mine()
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        own = tape.gradient(loss, model.trainable_variables)
        pairs = optimizer.compute_gradients(loss, model.trainable_variables, tape=tape)
        for index, (gradient, _) in enumerate(pairs):
            divided = own[index] / 2.0 if scales else own[index]
            assert np.allclose(gradient, divided if index < 2 else hvd.allreduce(own[index]), atol=1e-6)
        assert not all_have([gradient for gradient, _ in pairs[:2]])
    for passes in (1, 2):
        x, y = mine()
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        local, _ = model.layers
        optimizer = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=passes, local_layers=local
        )
        # Only now have the layers weights.
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        own = tape.gradient(loss, model.trainable_variables)
        for _ in range(passes):
            pairs = optimizer.compute_gradients(loss, model.trainable_variables, tape=tape)
        assert np.allclose(pairs[0][0], passes * own[0] / 2.0, atol=1e-6)
        assert np.allclose(pairs[2][0], passes * hvd.allreduce(own[2]), atol=1e-6)
    with pytest.raises(ValueError, match="are layers of Keras"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[3])


@scenario
def arguments_that_make_no_sense_are_refused() -> None:
    sgd = keras.optimizers.SGD
    for op in (hvd.Adasum, hvd.Min):
        with pytest.raises(ValueError, match=r"op is hvd\.Average or hvd\.Sum"):
            hvd.DistributedOptimizer(sgd(), op=op)
    with pytest.raises(ValueError, match=r"is for op=hvd\.Average"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="groups is a number"):
        hvd.DistributedOptimizer(sgd(), groups=-1)
    with pytest.raises(TypeError, match=r"shoal\.horovod\.tensorflow\.DistributedOptimizer"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(RuntimeError, match=r"hvd.elastic.CommitStateCallback is not there yet"):
        hvd.elastic.CommitStateCallback(None)
    with pytest.raises(RuntimeError, match=r"hvd.elastic.KerasState is not there yet"):
        shoal.horovod.keras.elastic.KerasState(None)


@scenario
def local_variables_stay_each_ranks_own() -> None:
    model = made_model(10 + hvd.rank(), layers=2)
    own = values_of(model.layers[0].weights)
    seen = Seen()
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=model.layers[0].weights)
    fitted(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), [callback, seen])
    assert all(np.array_equal(*pair) for pair in zip(seen.weights[:2], own, strict=True))
    assert not all_have(seen.weights[:2])
    assert all_have(seen.weights[2:])
    assert callback.broadcast_done
    with pytest.raises(ValueError, match="local_variables are variables"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=["x"])


@scenario
def a_model_that_one_rank_lacks_is_broadcast_after_the_first_batch() -> None:
    layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    keras.utils.set_random_seed(20 + hvd.rank())
    if hvd.rank() == 0:
        model.build((None, 3))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fitted(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), [callback])
    assert all_have(values_of(model.weights))
    variables = model.optimizer.variables
    assert all_have(values_of(variables() if callable(variables) else variables))


@scenario
def learning_rates_warm_up_and_follow_each_other() -> None:
    seen = Seen()
    schedules = [
        hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=2, end_epoch=4),
        hvd.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: epoch / 100, start_epoch=4, staircase=False),
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=0.9))
    history = fitted(made_model(1), optimizer, [*schedules, seen], epochs=5)
    warm = [0.4 * (1.0 + (batch + 1) / 12) / 2 for batch in range(12)]
    # A number is raised to the power of the epochs.
    assert np.allclose(seen.rates[:12], warm)
    assert np.allclose(seen.rates[12:24], [0.4] * 6 + [0.2] * 6)
    assert np.allclose(seen.rates[24:], [0.4 * (4 + batch / 6) / 100 for batch in range(6)])
    assert np.allclose(history["lr"], [seen.rates[6 * epoch + 5] for epoch in range(5)])


@scenario
def velocities_follow_the_learning_rate() -> None:
    """The velocity of SGD has the rate in it: corrected, momentum after a change is what it was, in units of the new rate."""

    def after_a_change(correction: bool) -> tuple[float, float]:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        model = made_model(1)
        fitted(model, optimizer, epochs=1)
        before = optimizer.momentums[0].numpy()
        schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda _: 0.5, momentum_correction=correction)
        schedule.set_model(model)
        schedule.on_epoch_begin(0)
        return float(np.abs(before).max()), float(np.abs(optimizer.momentums[0].numpy()).max())

    before, corrected = after_a_change(True)
    assert np.isclose(corrected, before / 2)
    before, left = after_a_change(False)
    assert left == before


@scenario
def the_best_model_is_kept_where_the_program_says() -> None:
    with tempfile.TemporaryDirectory() as folder:
        best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
        model = made_model(1)
        with pytest.raises(ValueError, match="set its attribute filepath"):
            best.on_train_begin()
        best.filepath = str(Path(folder) / "best.keras")
        fitted(
            model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), [hvd.callbacks.MetricAverageCallback(), best]
        )
        assert type(keras.models.load_model(best.filepath)) is type(model)


class OfTheProgram(keras.optimizers.RMSprop):  # type: ignore[misc]
    """Not known to Keras by its name."""


@scenario
def a_loaded_model_trains_on_with_its_state() -> None:
    class_of = {"RMSprop": keras.optimizers.RMSprop, "OfTheProgram": OfTheProgram}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        for name, arguments, op in (
            ("RMSprop", {}, hvd.Average),
            ("OfTheProgram", {"custom_optimizers": [OfTheProgram]}, hvd.Average),
            (
                "OfTheProgram",
                {
                    "custom_objects": {
                        "OfTheProgram": lambda **config: hvd.DistributedOptimizer(OfTheProgram(**config), op=hvd.Sum)
                    }
                },
                hvd.Sum,
            ),
        ):
            model = made_model(1)
            optimizer = hvd.DistributedOptimizer(class_of[name](0.01))
            fitted(model, optimizer)
            model.save(path)
            loaded = hvd.load_model(path, compression=hvd.Compression.fp16, **arguments)
            assert type(loaded.optimizer).__name__ == name
            assert loaded.optimizer._shoal_gradients.how.op == op
            pairs = zip(optimizer.variables, loaded.optimizer.variables, strict=True)
            assert all(np.array_equal(ours.numpy(), theirs.numpy()) for ours, theirs in pairs)
            loaded.fit(*mine(), batch_size=8, verbose=0)
            assert all_have(values_of(loaded.weights))
        made_model(1).save(path)
        with pytest.raises(ValueError, match="has no optimizer"):
            hvd.load_model(path)


@scenario
def one_rank_loads_and_the_others_make_the_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        if hvd.rank() == 0:
            alone = made_model(1)
            alone.compile(keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.MeanSquaredError())
            alone.fit(*mine(), batch_size=8, verbose=0)
            alone.save(path)
            model = hvd.load_model(path)
        else:
            model = made_model(2)
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
            model.compile(optimizer, keras.losses.MeanSquaredError())
        seen = Seen()
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), seen]
        model.fit(*mine(), batch_size=8, verbose=0, callbacks=callbacks)
        assert all_have(seen.weights)
        assert int(model.optimizer.iterations.numpy()) == 12
        assert all_have(values_of(model.optimizer.variables))


@scenario
def metrics_that_only_some_ranks_have_are_an_error_on_all() -> None:
    model = made_model(1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    metrics = ["mae"] if hvd.rank() else []
    with pytest.raises(shoal.Mismatch, match="do not have the same metrics"):
        fitted(model, optimizer, [hvd.callbacks.MetricAverageCallback()], metrics=metrics)
