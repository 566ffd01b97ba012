"""What a distributed optimizer promises, on the backend that KERAS_BACKEND names. test_keras.py runs it."""

import hashlib
import warnings
from itertools import product
from typing import Any

import keras
import keras_models as models
import numpy as np
import pytest
from scenarios import Scenarios

import shoal
import shoal.keras
from shoal.keras import DistributedOptimizer

scenario = Scenarios(lambda: shoal.init())
BACKEND = keras.backend.backend()
optimizers = keras.optimizers


def run_all() -> dict[str, str]:
    return scenario.run_each()


def digest_after_training() -> str:
    shoal.init()
    model = models.trained_together(lambda: optimizers.Adam(0.01))
    return hashlib.sha256(b"".join(each.tobytes() for each in models.values(model.trainable_variables))).hexdigest()


def filled(variable: Any) -> Any:
    return keras.ops.ones(variable.shape, dtype=variable.dtype)


@scenario
def ranks_together_train_the_model_of_one_process() -> None:
    models.check(lambda: optimizers.SGD(0.1, momentum=0.9))
    models.check(lambda: optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01, use_ema=True))


@scenario
def eager_steps_too() -> None:
    models.check(lambda: optimizers.SGD(0.1), run_eagerly=True)


@scenario
def several_steps_in_one_call() -> None:
    if BACKEND != "torch":  # where Keras has none
        models.check(lambda: optimizers.SGD(0.1), steps_per_execution=3)


@scenario
def a_loop_of_the_programs_own() -> None:
    rank, size = shoal.rank(), shoal.size()
    x, y = models.problem(size)
    model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(0.1)))
    for _ in range(2):
        for begin in range(0, len(x), size * models.ROWS):
            mine = slice(begin + rank * models.ROWS, begin + (rank + 1) * models.ROWS)
            model.train_on_batch(x[mine], y[mine])
    assert models.are_alike(model)
    assert models.difference(model, models.trained_alone(lambda: optimizers.SGD(0.1))) < 1e-5


@scenario
def gradients_given_to_apply() -> None:
    model = models.dense_model()
    optimizer = DistributedOptimizer(optimizers.SGD(1.0))
    before = models.values(model.trainable_variables)
    gradients = [filled(each) * (shoal.rank() + 1) for each in model.trainable_variables]
    mean = (shoal.size() + 1) / 2
    optimizer.apply(gradients, model.trainable_variables)
    for now, then in zip(models.values(model.trainable_variables), before, strict=True):
        assert np.allclose(now, then - mean, atol=1e-6)
    summing = DistributedOptimizer(optimizers.SGD(1.0), op="sum")
    gradients = [filled(each) for each in model.trainable_variables]
    summing.apply(gradients, model.trainable_variables)
    for now, then in zip(models.values(model.trainable_variables), before, strict=True):
        assert np.allclose(now, then - mean - shoal.size(), atol=1e-6)


@scenario
def gradients_that_share_memory_are_averaged_once_each() -> None:
    """PyTorch alone gives such: the same one for two variables, views of one another, and one number for all elements."""
    if BACKEND != "torch":
        return
    import torch

    rank, mean = shoal.rank(), shoal.size()  # Of 1, 3, 5 ...
    first, second = (keras.Variable(np.zeros(4, "float32"), name=name) for name in ("first", "second"))
    optimizer = DistributedOptimizer(optimizers.SGD(1.0))
    optimizer.build([first, second])
    loss = ((first.value + second.value) * torch.full([4], 1.0 + 2.0 * rank)).sum()
    same = torch.autograd.grad(loss, [first.value, second.value])
    assert same[0].data_ptr() == same[1].data_ptr()
    number = torch.autograd.grad(first.value.sum() * (1.0 + 2.0 * rank), [first.value])[0]
    assert number.stride() == (0,)
    both = torch.arange(8.0) * (1.0 + 2.0 * rank)
    cases = (
        (same, np.ones(4), np.ones(4)),
        ((number, both[4:]), np.ones(4), np.arange(4, 8)),
        ((both[:4], both[2:6]), np.arange(4), np.arange(2, 6)),
    )
    for gradients, of_first, of_second in cases:
        for variable in (first, second):
            variable.assign(np.zeros(4, "float32"))
        optimizer.apply(list(gradients))
        assert np.allclose(models.values([first])[0], -mean * of_first), models.values([first])
        assert np.allclose(models.values([second])[0], -mean * of_second), models.values([second])
    square = keras.Variable(np.zeros((3, 4), "float32"), name="square")
    factor = torch.arange(12.0).reshape(4, 3) * (1.0 + 2.0 * rank)
    windows = (torch.arange(6.0) * (1.0 + 2.0 * rank)).as_strided([3, 4], [1, 1])
    for gradient, expected in (
        (torch.autograd.grad((square.value.T * factor).sum(), [square.value])[0], np.arange(12.0).reshape(4, 3).T),
        (windows, np.arange(3)[:, None] + np.arange(4)),
    ):
        square.assign(np.zeros((3, 4), "float32"))
        DistributedOptimizer(optimizers.SGD(1.0)).apply([gradient], [square])
        assert np.allclose(models.values([square])[0], -mean * expected)


@scenario
def one_gradient_for_each_variable() -> None:
    first, second = (keras.Variable(np.zeros(2, "float32"), name=name) for name in ("first", "second"))
    for options in ({}, {"gradient_accumulation_steps": 2}):
        optimizer = DistributedOptimizer(optimizers.SGD(1.0, **options))
        with pytest.raises(ValueError, match="given 1 gradients for 2 variables"):
            optimizer.apply([filled(first)], [first, second])
        optimizer.build([first, second])
        with pytest.raises(ValueError, match=r"1 gradients"):
            optimizer.apply([filled(first)])
        if BACKEND == "jax":
            state, weights = ([each.value for each in part] for part in (optimizer.variables, (first, second)))
            with pytest.raises(ValueError, match="given 1 gradients for 2 variables"):
                optimizer.stateless_apply(state, [filled(first)], weights)
        optimizer.apply([])
    assert models.values([first])[0].tolist() == [0.0] * 2


@scenario
def a_gradient_that_is_none_stays_none() -> None:
    model = models.dense_model()
    optimizer = DistributedOptimizer(optimizers.SGD(1.0))
    before = models.values(model.trainable_variables)
    gradients: list[Any] = [None, *(filled(each) for each in model.trainable_variables[1:])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.apply(gradients, model.trainable_variables)
    now = models.values(model.trainable_variables)
    assert np.array_equal(now[0], before[0])
    assert np.allclose(now[1], before[1] - 1.0)


@scenario
def gradients_may_be_none_in_some_steps_on_all_ranks() -> None:
    variables = [keras.Variable(np.zeros(2, "float32"), name=name) for name in ("always", "sometimes")]
    optimizer = DistributedOptimizer(optimizers.SGD(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for is_there in (True, False, False, True):
            optimizer.apply([filled(variables[0]), filled(variables[1]) if is_there else None], variables)
    assert [float(each[0]) for each in models.values(variables)] == [-4.0, -2.0]


@scenario
def variables_of_the_same_path_are_told_apart() -> None:
    first, second = (keras.Variable(np.zeros(3, "float32"), name="twin") for _ in range(2))
    assert first.path == second.path
    gradients = [filled(each) * factor for each, factor in ((first, 1.0), (second, 5.0))]
    DistributedOptimizer(optimizers.SGD(1.0)).apply(gradients, [first, second])
    assert models.values([first, second])[0].tolist() == [-1.0] * 3
    assert models.values([first, second])[1].tolist() == [-5.0] * 3


@scenario
def gradients_are_accumulated_before_they_travel() -> None:
    optimizer: list[Any] = []

    def make() -> Any:
        optimizer.append(optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=3, clipnorm=0.4))
        return optimizer[-1]

    models.check(make)
    assert int(models.values([optimizer[0]._iterations])[0]) == 2 * models.STEPS


@scenario
def what_is_accumulated_travels_once() -> None:
    calls: list[Any] = []
    optimizer = DistributedOptimizer(optimizers.SGD(1.0, gradient_accumulation_steps=2))
    averaging = optimizer._shoal_averaging
    average = averaging._of_backend
    averaging._of_backend = lambda gradients, *rest: calls.append(gradients) or average(gradients, *rest)
    variable = keras.Variable(np.zeros(2, "float32"), name="accumulated")
    for step in range(4):
        gradient = keras.ops.convert_to_tensor(np.full(2, shoal.rank() + step, "float32"))
        optimizer.apply([gradient], [variable])
    mean = (shoal.size() - 1) / 2
    assert np.allclose(models.values([variable])[0], -(2 * mean + 0.5 + 2.5))
    if BACKEND != "jax":  # which traces both ways, and takes one
        assert len(calls) == 2


@scenario
def a_loss_scale_optimizer_skips_a_step_on_all_ranks_or_none() -> None:
    def make() -> Any:
        return optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=64.0)

    models.check(make)
    optimizer = DistributedOptimizer(make())
    model = models.dense_model()
    optimizer.build(model.trainable_variables)
    before = models.values(model.trainable_variables)
    # Infinite on one rank alone.
    size = np.inf if shoal.rank() == 1 else 1.0
    gradients = [filled(each) * size for each in model.trainable_variables]
    if BACKEND == "jax":  # where Keras has it stateless alone
        state, weights = ([each.value for each in part] for part in (optimizer.variables, model.trainable_variables))
        weights, state = optimizer.stateless_apply(state, gradients, weights)
        for variable, value in zip([*model.trainable_variables, *optimizer.variables], [*weights, *state], strict=True):
            variable.assign(value)
    else:
        optimizer.apply(gradients, model.trainable_variables)
    assert float(models.values([optimizer.dynamic_scale])[0]) == 32.0
    assert all(np.array_equal(*pair) for pair in zip(models.values(model.trainable_variables), before, strict=True))


@scenario
def mixed_float16_wants_the_loss_scale_inside() -> None:
    def make() -> Any:
        keras.utils.set_random_seed(7)
        layers = [
            keras.layers.Input((models.FEATURES,)),
            keras.layers.Dense(16, activation="gelu", dtype="mixed_float16"),
        ]
        return keras.Sequential([*layers, keras.layers.Dense(models.CLASSES, dtype="float32")], name="mixed")

    keras.config.set_dtype_policy("mixed_float16")
    try:
        with pytest.raises(ValueError, match=r"outermost.*DistributedOptimizer\(keras.optimizers.LossScaleOptimizer"):
            models.compiled(make(), DistributedOptimizer(optimizers.Adam(0.01)))
        model = models.trained_together(lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01)), make)
    finally:
        keras.config.set_dtype_policy("float32")
    assert models.are_alike(model)
    assert models.difference(model, make()) > 1e-3


@scenario
def optimizers_of_several() -> None:
    def make() -> Any:
        parts = optimizers.OptimizerMap(optimizers.SGD(0.1), {"first/.*": optimizers.Adam(0.01)})
        return optimizers.MultiOptimizer(parts)

    if hasattr(optimizers, "MultiOptimizer"):
        models.check(make)


class AdamOfDense(optimizers.Adam):
    """Keras's own, for which slices of one row are not the same as their sum."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([dense(each) for each in grads], trainable_variables)


def dense(gradient: Any) -> Any:
    if not hasattr(gradient, "dense_shape"):
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


@scenario
def embeddings_of_all_ranks_come_together() -> None:
    rank, size = shoal.rank(), shoal.size()
    random = np.random.default_rng(5)
    x = random.integers(0, 20, size=(models.STEPS * size * models.ROWS, 4))
    y = (x.sum(1) % 3).astype("int32")

    def make() -> Any:
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Input((4,), dtype="int32"), keras.layers.Embedding(20, 6), keras.layers.Flatten()]
        return keras.Sequential([*layers, keras.layers.Dense(models.CLASSES)], name="words")

    for own, alones, sparse_as_dense in (
        (optimizers.SGD(0.1), optimizers.SGD(0.1), False),
        (optimizers.SGD(0.1), optimizers.SGD(0.1), True),
        (optimizers.Adam(0.01), optimizers.Adam(0.01), False),
        (optimizers.Adam(0.01), AdamOfDense(0.01), True),
    ):
        alone = models.compiled(make(), alones)
        models.fit(alone, x, y, size * models.ROWS)
        together = models.compiled(make(), DistributedOptimizer(own, sparse_as_dense=sparse_as_dense))
        models.fit(together, models.part(x, rank, size), models.part(y, rank, size), models.ROWS)
        assert models.are_alike(together)
        assert models.difference(together, alone) < 1e-5


class SeesGradients(optimizers.SGD):
    def update_step(self, gradient: Any, *rest: Any) -> None:
        self.__dict__.setdefault("seen", []).append(type(gradient).__name__)
        super().update_step(gradient, *rest)


@scenario
def sparse_gradients_are_made_dense_if_the_program_says_so() -> None:
    if BACKEND != "tensorflow":  # where none are sparse
        return
    import tensorflow as tf

    for sparse_as_dense, eagerly in product((False, True), (False, True)):
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Input((4,), dtype="int32"), keras.layers.Embedding(9, 6), keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(models.CLASSES)], name="sparse")
        optimizer = DistributedOptimizer(SeesGradients(0.1), sparse_as_dense=sparse_as_dense)
        models.compiled(model, optimizer, run_eagerly=eagerly)
        model.train_on_batch(np.full((2, 4), shoal.rank()), np.zeros(2, "int32"))
        assert (tf.IndexedSlices.__name__ in optimizer.seen) is not sparse_as_dense, optimizer.seen
        assert models.are_alike(model)


@scenario
def a_group_trains_by_itself() -> None:
    group = shoal.Group([1, 0])
    if group.rank is None:
        return
    variable = keras.Variable(np.zeros(2, "float32"), name="of the group")
    gradient = filled(variable) * (shoal.rank() + 1)
    DistributedOptimizer(optimizers.SGD(1.0), group=group).apply([gradient], [variable])
    assert np.allclose(models.values([variable])[0], -1.5)


@scenario
def large_gradients() -> None:
    variable = keras.Variable(np.zeros((1500, 1000), "float32"), name="large")
    optimizer = DistributedOptimizer(optimizers.SGD(1.0))
    for _ in range(3):
        optimizer.apply([filled(variable) * shoal.rank()], [variable])
    assert np.allclose(models.values([variable])[0], -3 * (shoal.size() - 1) / 2)


@scenario
def half_precision_gradients() -> None:
    for dtype in ("float16", "bfloat16"):
        variable = keras.Variable(np.zeros(4), dtype=dtype, name=f"of {dtype}")
        gradient = filled(variable) * shoal.rank()
        DistributedOptimizer(optimizers.SGD(1.0)).apply([gradient], [variable])
        assert np.allclose(models.values([variable])[0].astype("float32"), -(shoal.size() - 1) / 2)


@scenario
def what_cannot_be_wrapped_is_refused() -> None:
    optimizer = DistributedOptimizer(optimizers.Adam(0.01))
    with pytest.raises(ValueError, match="averages gradients already"):
        DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="outermost"):
        optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(TypeError, match="an optimizer of Keras 3"):
        DistributedOptimizer("adam")
    with pytest.raises(ValueError, match="mean or sum"):
        DistributedOptimizer(optimizers.Adam(0.01), op="max")


@scenario
def values_that_overwrite_are_the_greatest_of_all_ranks() -> None:
    scale, weight = (keras.Variable(np.zeros(2, "float32"), name=name) for name in ("scale", "weight"))
    scale.overwrite_with_gradient = True
    gradients = [filled(each) * (shoal.rank() + 1) for each in (scale, weight)]
    DistributedOptimizer(optimizers.SGD(1.0)).apply(gradients, [scale, weight])
    assert models.values([scale])[0].tolist() == [shoal.size()] * 2
    assert np.allclose(models.values([weight])[0], -(shoal.size() + 1) / 2)


def xla_problem() -> str:
    from shoal.tensorflow import xla

    problem: str = xla.problem()
    return problem


@scenario
def steps_that_are_compiled_whole() -> None:
    if BACKEND == "tensorflow" and xla_problem():
        model = models.compiled(models.dense_model(), DistributedOptimizer(optimizers.SGD(0.1)), jit_compile=True)
        with pytest.raises(NotImplementedError, match="jit_compile=False"):
            models.fit(model, *models.problem(1), models.ROWS)
    elif BACKEND != "torch" or shoal.size() == 2:  # which takes torch.compile a while
        assert models.check(lambda: optimizers.SGD(0.1), jit_compile=True).jit_compile


@scenario
def ranks_that_disagree_hear_it() -> None:
    variable = keras.Variable(np.zeros(3 + shoal.rank(), "float32"), name="odd")
    with pytest.raises(shoal.Mismatch, match=r"rank 0 .*\[odd \(3,\).*rank 1 .*\[odd \(4,\)"):
        DistributedOptimizer(optimizers.SGD(1.0)).apply([filled(variable)], [variable])


@scenario
def ranks_with_other_layers_hear_it() -> None:
    variables = [keras.Variable(np.zeros(3, "float32"), name=name) for name in ("shared", f"only {shoal.rank() % 2}")]
    gradients = [filled(each) for each in variables]
    with pytest.raises(shoal.Mismatch, match=r"same gradients .*rank 0 .*\[only 0 .*rank 1 .*\[only 1 "):
        DistributedOptimizer(optimizers.SGD(1.0)).apply(gradients, variables)
    shoal.barrier()
