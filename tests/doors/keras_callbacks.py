"""What the callbacks for Keras and models from files promise, on the backend that KERAS_BACKEND names. test_keras.py runs it."""

import json
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import keras_models as models
import numpy as np
import pytest
from scenarios import Scenarios

import shoal
import shoal.keras
from shoal.keras import DistributedOptimizer, callbacks

scenario = Scenarios(lambda: shoal.init())
BACKEND = keras.backend.backend()
optimizers = keras.optimizers


def run_all() -> dict[str, str]:
    return scenario.run_each()


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Of all ranks, which are on one machine."""
    path = tempfile.mkdtemp(prefix="shoal-keras-") if shoal.rank() == 0 else ""
    path = bytes(shoal.broadcast(np.frombuffer(path.ljust(200).encode(), np.uint8))).decode().strip()
    try:
        yield Path(path)
    finally:
        shoal.barrier()
        if shoal.rank() == 0:
            shutil.rmtree(path)


def model_of_everything(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Input((models.FEATURES,)),
        keras.layers.Dense(8, activation="gelu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(models.CLASSES),
    ]
    return keras.Sequential(layers, name="everything")


def mine() -> tuple[Any, Any]:
    return tuple(models.part(each, shoal.rank(), shoal.size()) for each in models.problem(shoal.size()))  # type: ignore[return-value]


def all_have(value: Any) -> bool:
    return np.array_equal(shoal.allreduce(np.asarray(value), "min"), shoal.allreduce(np.asarray(value), "max"))


class Seen(keras.callbacks.Callback):
    """What the callbacks before it have left."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Any] = []
        self.logs: list[dict[str, float]] = []
        self.rates: list[float] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.weights = models.values([*self.model.weights, *self.model.optimizer.variables])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if BACKEND == "jax":
            self.model.jax_state_sync()
        self.rates.append(float(models.values([self.model.optimizer.learning_rate])[0]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


@scenario
def all_ranks_begin_with_what_the_root_has() -> None:
    root = shoal.size() - 1
    models_by_seed = [model_of_everything(100 + rank) for rank in range(shoal.size())]
    model = models.compiled(
        models_by_seed[shoal.rank()], DistributedOptimizer(optimizers.Adam(0.01 * (shoal.rank() + 1)))
    )
    # The paths differ, since each rank has made several models of unnamed layers.
    with pytest.raises(shoal.Mismatch, match=r"(?s)same variables.*rank 0 .*dense.*rank 1 .*dense"):
        models.fit(model, *mine(), models.ROWS, callbacks=[callbacks.BroadcastVariablesCallback(root)])
    shoal.barrier()
    keras.backend.clear_session()
    model = models.compiled(
        model_of_everything(100 + shoal.rank()), DistributedOptimizer(optimizers.Adam(0.01 * (shoal.rank() + 1)))
    )
    expected = models.values(model.weights) if shoal.rank() == root else None
    seen = Seen()
    models.fit(model, *mine(), models.ROWS, callbacks=[callbacks.BroadcastVariablesCallback(root), seen])
    assert len(seen.weights) > len(model.weights) + 8
    assert all(all_have(each) for each in seen.weights)
    if expected is not None:
        assert all(np.array_equal(*pair) for pair in zip(seen.weights, expected, strict=False))
    assert np.isclose(models.values([model.optimizer.learning_rate])[0], 0.01 * shoal.size())
    assert models.are_alike(model)


@scenario
def state_of_an_optimizer_that_has_made_steps_is_broadcast() -> None:
    keras.backend.clear_session()
    model = models.compiled(models.dense_model(shoal.rank()), optimizers.Adam(0.01))
    if shoal.rank() == 0:
        models.fit(model, *mine(), models.ROWS)
    # Anew, since what Keras has compiled has the optimizer as it was.
    models.compiled(model, DistributedOptimizer(model.optimizer))
    seen = Seen()
    models.fit(model, *mine(), models.ROWS, epochs=1, callbacks=[callbacks.BroadcastVariablesCallback(), seen])
    assert all(all_have(each) for each in seen.weights)
    assert int(models.values([model.optimizer.iterations])[0]) == 3 * models.STEPS
    assert models.are_alike(model)


@scenario
def a_step_that_was_compiled_before_is_found_out() -> None:
    keras.backend.clear_session()
    model = models.compiled(models.dense_model(), optimizers.SGD(0.1))
    models.fit(model, *mine(), models.ROWS, epochs=1)
    DistributedOptimizer(model.optimizer)
    order = [
        callbacks.MetricAverageCallback() if shoal.rank() else callbacks.BroadcastVariablesCallback(0, shoal.Group([0]))
    ]
    if BACKEND == "torch":  # which compiles nothing
        return
    with pytest.raises(RuntimeError, match=r"'small' were not averaged.*model.compile again"):
        models.fit(model, *mine(), models.ROWS, epochs=1, callbacks=order)


@scenario
def an_optimizer_that_was_made_distributed_inside_another_is_found_out() -> None:
    keras.backend.clear_session()
    model = models.compiled(models.dense_model(), optimizers.LossScaleOptimizer(optimizers.SGD(0.1)))
    DistributedOptimizer(model.optimizer.inner_optimizer)
    with pytest.raises(ValueError, match="must be the outermost optimizer"):
        models.fit(model, *mine(), models.ROWS, callbacks=[callbacks.BroadcastVariablesCallback()])


@scenario
def a_model_without_weights_is_refused_or_built() -> None:
    keras.backend.clear_session()
    model = models.compiled(
        keras.Sequential([keras.layers.Dense(models.CLASSES)], name="late"), DistributedOptimizer(optimizers.SGD(0.1))
    )
    options = {"callbacks": [callbacks.BroadcastVariablesCallback()], "epochs": 1}
    if BACKEND == "tensorflow":
        with pytest.raises(ValueError, match=r"'late' has no weights yet.*keras.Input"):
            models.fit(model, *mine(), models.ROWS, **options)
    else:
        models.fit(model, *mine(), models.ROWS, **options)
        assert models.are_alike(model)


class WithMore(keras.Model):  # type: ignore[misc]
    """A model that does not use a layer of it, or only in training."""

    def __init__(self, uses: bool) -> None:
        super().__init__(name="more")
        self.first = keras.layers.Dense(models.CLASSES, name="first")
        self.other = keras.layers.Dense(models.CLASSES, name="other")
        self.uses = uses

    def call(self, x: Any, training: bool = False) -> Any:
        return self.first(x) + (self.other(x) if self.uses and training else 0.0)


@scenario
def a_layer_that_is_never_used_is_told_of() -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(shoal.rank())
    model = WithMore(uses=False)
    model(np.zeros((1, models.FEATURES), "float32"))
    models.compiled(model, DistributedOptimizer(optimizers.SGD(0.1)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        models.fit(model, *mine(), models.ROWS, epochs=1, callbacks=[callbacks.BroadcastVariablesCallback()])
    texts = [str(each.message) for each in told if "had no weights that could be broadcast" in str(each.message)]
    assert len(texts) == (shoal.rank() == 0)
    assert all("the layer 'other' of the model 'more'" in text for text in texts)
    assert models.are_alike(model)


@scenario
def a_layer_that_gets_weights_after_the_broadcast_is_an_error() -> None:
    if BACKEND != "tensorflow":  # where Keras makes them before training begins
        return
    keras.backend.clear_session()
    model = WithMore(uses=True)
    model(np.zeros((1, models.FEATURES), "float32"))
    # Else Keras would refuse weights that its optimizer does not know.
    model.other.trainable = False
    models.compiled(model, DistributedOptimizer(optimizers.SGD(0.1)), run_eagerly=True)
    expected = pytest.raises(RuntimeError, match=r"the layer 'other' of .* after the broadcast")
    with warnings.catch_warnings(action="ignore"), expected:
        models.fit(model, *mine(), models.ROWS, epochs=1, callbacks=[callbacks.BroadcastVariablesCallback()])


@scenario
def metrics_are_those_of_all_ranks() -> None:
    keras.backend.clear_session()
    model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(0.1)))
    before, after = Seen(), Seen()
    order = [before, callbacks.MetricAverageCallback(), after]
    history = models.fit(model, *mine(), models.ROWS, validation_data=mine(), callbacks=order)
    for epoch, (own, averaged) in enumerate(zip(before.logs, after.logs, strict=True)):
        assert set(own) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        for name, value in averaged.items():
            assert all_have(value)
            assert np.isclose(value, shoal.allreduce(np.float64(own[name])))
            assert history.history[name][epoch] == value
        assert not all_have(own["loss"])


@scenario
def all_ranks_stop_in_the_same_epoch() -> None:
    keras.backend.clear_session()
    model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(0.1)))
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.02)
    options = {"validation_data": mine(), "epochs": 30}
    history = models.fit(
        model, *mine(), models.ROWS, callbacks=[callbacks.MetricAverageCallback(), stopping], **options
    )
    assert all_have(len(history.history["loss"]))
    assert models.are_alike(model)


@scenario
def metrics_that_only_some_ranks_have_are_an_error_on_all() -> None:
    logs = {"loss": 1.0 + shoal.rank(), **({"val_loss": 2.0} if shoal.rank() == 0 else {})}
    with pytest.raises(shoal.Mismatch, match=r"val_loss on rank 0 .*alone.*validation data"):
        shoal.keras.average_metrics(logs)
    averaged = shoal.keras.average_metrics({"loss": 1.0 + shoal.rank(), "name": "x", "nan": float("nan")})
    assert averaged["loss"] == 1.0 + (shoal.size() - 1) / 2
    assert averaged["name"] == "x"
    assert np.isnan(averaged["nan"])


@scenario
def the_learning_rate_warms_up_by_even_steps() -> None:
    keras.backend.clear_session()
    size, steps = shoal.size(), models.STEPS
    model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(0.5, momentum=0.9)))
    seen = Seen()
    warmup = callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=1)
    models.fit(model, *mine(), models.ROWS, epochs=3, callbacks=[warmup, seen])
    done = np.minimum(np.arange(1, 3 * steps + 1) / (2 * steps), 1.0)
    assert np.allclose(seen.rates, 0.1 / size * (1 + done * (size - 1)), rtol=1e-5)
    assert [round(each["learning_rate"], 6) for each in seen.logs] == [
        round(0.1 / size * (1 + (size - 1) / 2), 6),
        0.1,
        0.1,
    ]
    assert models.are_alike(model)


@scenario
def a_warm_up_ends_at_its_rate_also_with_several_steps_in_one_call() -> None:
    """So does a schedule, at that of the last batch; and where an epoch is shorter than it was said to be."""
    steps = models.STEPS
    calls = (1,) if BACKEND == "torch" else (1, 4, steps)
    for steps_per_execution, said in ((each, None) for each in calls):
        for callback, last in (
            (callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, steps_per_epoch=said), 0.1),
            (
                callbacks.LearningRateScheduleCallback(
                    0.1, lambda epoch: 1 + epoch, end_epoch=2, staircase=False, steps_per_epoch=said
                ),
                0.1 * (3 - 1 / steps),
            ),
        ):
            keras.backend.clear_session()
            optimizer = DistributedOptimizer(optimizers.SGD(0.5, momentum=0.9))
            model = models.compiled(models.dense_model(), optimizer, steps_per_execution=steps_per_execution)
            history = models.fit(model, *mine(), models.ROWS, epochs=3, callbacks=[callback]).history
            assert np.allclose(history["learning_rate"][1:], last, rtol=1e-6), (steps_per_execution, history)
            assert models.are_alike(model)
    keras.backend.clear_session()
    model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(0.5)))
    longer = callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, steps_per_epoch=2 * steps)
    models.fit(model, *mine(), models.ROWS, epochs=2, callbacks=[longer])
    assert np.isclose(models.values([model.optimizer.learning_rate])[0], 0.1)


@scenario
def schedules_follow_each_other() -> None:
    keras.backend.clear_session()
    model = models.compiled(
        models.dense_model(), DistributedOptimizer(optimizers.LossScaleOptimizer(optimizers.SGD(0.5)))
    )
    seen = Seen()
    schedule = callbacks.LearningRateScheduleCallback
    order = [
        schedule(0.1, 0.5, end_epoch=1),
        schedule(0.1, lambda epoch: 0.1**epoch, start_epoch=1, end_epoch=2),
        schedule(0.1, lambda epoch: epoch, start_epoch=2, staircase=False),
    ]
    models.fit(model, *mine(), models.ROWS, epochs=3, callbacks=[*order, seen])
    steps = models.STEPS
    expected = [0.05] * steps + [0.01] * steps + [0.1 * (2 + step / steps) for step in range(steps)]
    assert np.allclose(seen.rates, expected, rtol=1e-5)


@scenario
def velocities_follow_the_learning_rate() -> None:
    """As if the momentum were multiplied by the new rate over the old one in the first step after the change."""
    for corrects in (True, False):
        keras.backend.clear_session()
        model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(0.1, momentum=0.5)))
        schedule = callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1.5**epoch, momentum_correction=corrects)
        x, y = mine()
        rows = slice(0, models.ROWS)
        models.fit(model, x[rows], y[rows], models.ROWS, epochs=2, callbacks=[schedule])

        keras.backend.clear_session()
        whole = models.dense_model()
        random_x, random_y = models.problem(shoal.size())
        rows = slice(0, models.ROWS * shoal.size())
        batch = (random_x[rows], random_y[rows], models.ROWS * shoal.size())
        first = models.compiled(whole, optimizers.SGD(0.1, momentum=0.5))
        models.fit(first, *batch, epochs=1)
        moments = models.values(first.optimizer.momentums)
        second = optimizers.SGD(0.15, momentum=0.5 * (1.5 if corrects else 1.0))
        second.build(whole.trainable_variables)
        for variable, value in zip(second.momentums, moments, strict=True):
            variable.assign(value)
        models.fit(models.compiled(whole, second), *batch, epochs=1)
        assert models.difference(model, whole) < 1e-5, corrects


@scenario
def a_learning_rate_that_cannot_be_set_is_refused() -> None:
    keras.backend.clear_session()
    schedule = optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(schedule)))
    with pytest.raises(ValueError, match="cannot be set: make the optimizer with a number"):
        models.fit(model, *mine(), models.ROWS, callbacks=[callbacks.LearningRateWarmupCallback(0.1)])


@scenario
def the_best_model_is_written_once_and_known_to_all() -> None:
    keras.backend.clear_session()
    with shared_folder() as folder:
        model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.Adam(0.02)))
        best = callbacks.BestModelCheckpoint(folder / "best-{epoch}.keras", verbose=0)
        history = models.fit(model, *mine(), models.ROWS, epochs=3, validation_data=mine(), callbacks=[best])
        means = [float(shoal.allreduce(np.float64(value))) for value in history.history["val_loss"]]
        assert best.best == min(means) or np.isclose(best.best, min(means), rtol=1e-12)
        assert all_have(best.best)
        assert (folder / f"best-{1 + int(np.argmin(means))}.keras").exists()
        shoal.barrier()
        # In every second epoch there is nothing to tell it by.
        best = callbacks.BestModelCheckpoint(folder / "second-{epoch}-{val_loss:.2f}.keras")
        options = {"validation_data": mine(), "validation_freq": 2}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            models.fit(model, *mine(), models.ROWS, epochs=3, callbacks=[best], **options)
        texts = [str(each.message) for each in told if "no metric 'val_loss'" in str(each.message)]
        assert [text.split(",")[0][:13] for text in texts] == (
            ["after epoch 1", "after epoch 3"] if shoal.rank() == 0 else []
        )
        assert [path.name.split("-")[1] for path in folder.glob("second-*")] == ["2"]
        assert best.best is not None
        assert all_have(best.best)
        shoal.barrier()
        (folder / "file").touch()
        shoal.barrier()
        unwritable = callbacks.BestModelCheckpoint(folder / "file" / "x.keras", monitor="loss")
        with pytest.raises(shoal.ShoalError, match=r"could not be saved on rank 0 .*NotADirectoryError"):
            models.fit(model, *mine(), models.ROWS, epochs=1, callbacks=[unwritable])


PLAIN = """
import sys
sys.modules["shoal"] = None
import keras, numpy as np
model = keras.saving.load_model(sys.argv[1])
assert type(model.optimizer) in (keras.optimizers.Adam, type(keras.optimizers.Adam(0.1))), type(model.optimizer)
np.savez(sys.argv[2], *[np.asarray(keras.ops.convert_to_numpy(v)) for v in model.weights + model.optimizer.variables])
model.fit(np.zeros((4, 12), "float32"), np.zeros(4, "int32"), verbose=0)
"""


@scenario
def a_saved_model_loads_without_shoal() -> None:
    keras.backend.clear_session()
    with shared_folder() as folder:
        model = models.trained_together(lambda: optimizers.Adam(0.01))
        path = folder / f"model{shoal.rank()}.keras"
        model.save(path)
        config = json.loads(zipfile.ZipFile(path).read("config.json"))["compile_config"]["optimizer"]
        assert (config["module"], config["class_name"]) == ("keras.optimizers", "Adam")
        if shoal.rank() == 0:
            copied = folder / "copied.npz"
            subprocess.run([sys.executable, "-c", PLAIN, str(path), str(copied)], check=True, timeout=200)
            saved = np.load(copied)
            expected = models.values([*model.weights, *model.optimizer.variables])
            assert all(
                np.array_equal(*pair) for pair in zip([saved[key] for key in saved.files], expected, strict=True)
            )


@scenario
def a_loaded_model_averages_again() -> None:
    keras.backend.clear_session()
    with shared_folder() as folder:
        model = models.trained_together(lambda: optimizers.Adam(0.01))
        path = folder / "model.keras"
        if shoal.rank() == 0:
            model.save(path)
        shoal.barrier()
        loaded = shoal.keras.load_model(path)
        for each in (model, loaded):
            models.fit(each, *mine(), models.ROWS)
        assert models.are_alike(loaded)
        assert models.difference(loaded, model) < 1e-6
        with pytest.raises(ValueError, match="averages gradients already"):
            DistributedOptimizer(loaded.optimizer)
        if shoal.rank() == 0:
            models.dense_model().save(folder / "plain.keras")
        shoal.barrier()
        with pytest.raises(ValueError, match="has no optimizer: load it with"):
            shoal.keras.load_model(folder / "plain.keras")


@keras.saving.register_keras_serializable(package="tests")
class OfTheProgram(keras.optimizers.SGD):
    pass


@scenario
def a_class_of_the_programs_own_keeps_its_name() -> None:
    optimizer = DistributedOptimizer(OfTheProgram(0.1))
    written = keras.saving.serialize_keras_object(optimizer)
    assert written["registered_name"] == "tests>OfTheProgram"
    read = keras.saving.deserialize_keras_object(written)
    assert type(read) is OfTheProgram
    assert isinstance(optimizer, OfTheProgram)


@scenario
def variables_of_other_dtypes_are_broadcast() -> None:
    made = [
        keras.Variable(np.full(3, shoal.rank()), dtype=dtype, name=f"of {dtype}", trainable=False)
        for dtype in ("float16", "bfloat16", "int32", "bool", "float32")
    ]
    shoal.keras.broadcast_variables(made, root=1)
    for value in models.values(made):
        assert value.astype("float32").tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="not a member"):
        shoal.keras.broadcast_variables(made, root=shoal.size())
