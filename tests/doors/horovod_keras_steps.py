"""How often gradients are combined from where they are computed to where they are applied: once. For 2 ranks.

test_keras_horovod.py runs it. Ranks' gradients are mostly 1 and 2. Sums show what was combined twice: they would double.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from horovod_keras import IS_KERAS_3, all_have, batches, keras, made_model, mine
from scenarios import Scenarios

import shoal.horovod.tensorflow.keras as hvd

scenario = Scenarios(lambda: hvd.init())

SGDS = [keras.optimizers.SGD] if IS_KERAS_3 else [keras.optimizers.SGD, keras.optimizers.legacy.SGD]
Step = Callable[[Any, Any], None]


def run_all() -> dict[str, str]:
    with warnings.catch_warnings():
        # Where a scenario does not expect one, it is an error.
        warnings.filterwarnings("error", "compute_gradients has combined")
        return scenario.run_each()


def own() -> Any:
    """This rank's gradient of what ``loss`` gives."""
    return tf.constant([1.0 + hvd.rank()])


def loss(*variables: Any) -> Any:
    return sum(tf.reduce_sum(each * own()) for each in variables)


def computed(optimizer: Any, *variables: Any) -> list[Any]:
    """The gradients of all ranks."""
    return [gradient for gradient, _ in optimizer.compute_gradients(lambda: loss(*variables), list(variables))]


def summing(make: Any = keras.optimizers.SGD, **arguments: Any) -> Any:
    return hvd.DistributedOptimizer(make(1.0), op=hvd.Sum, **arguments)


def value(variable: Any) -> float:
    return float(variable.numpy()[0])


def stepped(step: Step, steps: int = 2) -> Iterator[float]:
    """What a variable is after some steps from 0 on, which are eager and in a function, for each class of optimizers."""
    for make, eagerly in product(SGDS, (True, False)):
        x = tf.Variable([0.0])
        optimizer = summing(make)
        run = step if eagerly else tf.function(step)
        for _ in range(steps):
            run(optimizer, x)
        yield value(x)


@contextmanager
def counted(optimizer: Any) -> Iterator[list[int]]:
    """How many gradients are combined at a time."""
    gradients, counts = optimizer._shoal_gradients, []
    combine = gradients.combined

    def combined(given: Any, variables: Any) -> Any:
        counts.append(len(given))
        return combine(given, variables)

    gradients.combined = combined
    try:
        yield counts
    finally:
        gradients.combined = combine


@scenario
def what_the_optimizer_computed_or_is_given() -> None:
    def by_itself(optimizer: Any, x: Any) -> None:
        optimizer.apply_gradients(optimizer.compute_gradients(lambda: loss(x), [x]))

    def of_a_tape(optimizer: Any, x: Any) -> None:
        with tf.GradientTape() as tape:
            total = loss(x)
        optimizer.apply_gradients(optimizer.compute_gradients(total, [x], tape=tape))

    def given(optimizer: Any, x: Any) -> None:
        with tf.GradientTape() as tape:
            total = loss(x)
        optimizer.apply_gradients([(tape.gradient(total, x), x)])

    def said_to_be_combined(optimizer: Any, x: Any) -> None:
        optimizer.apply_gradients([(own(), x)], experimental_aggregate_gradients=False)

    for step in (by_itself, of_a_tape, given):
        assert list(stepped(step)) == [-6.0] * 2 * len(SGDS), step.__name__
    assert list(stepped(said_to_be_combined)) == [-2.0 * (1.0 + hvd.rank())] * 2 * len(SGDS)
    optimizer = summing()
    with pytest.raises(ValueError, match="tape"):
        optimizer.compute_gradients(tf.constant(1.0), [tf.Variable(1.0)])
    with pytest.raises(NotImplementedError, match="use compute_gradients"):
        optimizer.get_gradients(tf.constant(1.0), [tf.Variable(1.0)])


@scenario
def what_the_program_changed_in_between() -> None:
    def clipped(optimizer: Any, x: Any) -> None:
        gradients, _ = tf.clip_by_global_norm(computed(optimizer, x), 2.0)
        optimizer.apply_gradients(zip(gradients, [x], strict=True))

    def scaled(optimizer: Any, x: Any) -> None:
        optimizer.apply_gradients([(gradient * 0.5, x) for gradient in computed(optimizer, x)])

    def said_to_be_combined(optimizer: Any, x: Any) -> None:
        optimizer.apply_gradients([(2.0 * each, x) for each in computed(optimizer, x)], skip_gradients_aggregation=True)

    assert list(stepped(clipped)) == [-4.0] * 2 * len(SGDS)
    assert list(stepped(scaled)) == [-3.0] * 2 * len(SGDS)
    if IS_KERAS_3:
        assert list(stepped(said_to_be_combined)) == [-12.0] * 2
    x = tf.Variable([0.0])
    averaging = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with counted(averaging) as counts:
        for _ in range(3):
            clipped(averaging, x)
    assert counts == [1, 1, 1]


@scenario
def steps_of_both_kinds_follow_each_other() -> None:
    def mixed(optimizer: Any, x: Any) -> None:
        optimizer.apply_gradients([(each * 1.0, x) for each in computed(optimizer, x)])
        optimizer.apply_gradients([(own(), x)])
        optimizer.apply_gradients([(each * 2.0, x) for each in computed(optimizer, x)])
        optimizer.apply_gradients([(own(), x)])

    assert list(stepped(mixed)) == [-30.0] * 2 * len(SGDS)


@scenario
def what_was_computed_several_times_before_it_is_applied() -> None:
    def twice(optimizer: Any, x: Any) -> None:
        first, second = computed(optimizer, x), computed(optimizer, x)
        optimizer.apply_gradients([(first[0] + second[0], x)])
        optimizer.apply_gradients([(own(), x)])

    def late(optimizer: Any, x: Any) -> None:
        first, second = computed(optimizer, x), computed(optimizer, x)
        optimizer.apply_gradients([(second[0] * 2.0, x)])
        # These are known by themselves.
        optimizer.apply_gradients([(first[0], x)])
        optimizer.apply_gradients([(first[0], x)])

    assert list(stepped(twice)) == [-18.0] * 2 * len(SGDS)
    assert list(stepped(late)) == [-24.0] * 2 * len(SGDS)


@scenario
def local_variables_are_divided_once() -> None:
    for make, eagerly in product(SGDS, (True, False)):
        x, local = tf.Variable([0.0]), tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(make(1.0))
        optimizer.register_local_var(local)

        def step(optimizer: Any = optimizer, x: Any = x, local: Any = local) -> None:
            gradients, _ = tf.clip_by_global_norm(computed(optimizer, x, local), 100.0)
            optimizer.apply_gradients(zip(gradients, [x, local], strict=True))

        (step if eagerly else tf.function(step))()
        assert np.isclose(value(x), -1.5)
        assert np.isclose(value(local), -(1.0 + hvd.rank()) / 2.0)


@scenario
def passes_are_counted_once() -> None:
    for make, eagerly in product(SGDS, (True, False)):
        x = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=2, average_aggregated_gradients=True)

        def step(given: Any, optimizer: Any = optimizer, x: Any = x) -> None:
            pairs = optimizer.compute_gradients(lambda: x * given, [x])
            optimizer.apply_gradients([(tf.clip_by_value(gradient, -100.0, 100.0), x) for gradient, x in pairs])

        run, seen = step if eagerly else tf.function(step), []
        for index in range(5):
            run(tf.constant([index + 2.0 * hvd.rank()]))
            seen.append(value(x))
        assert seen == [0.0, -1.5, -1.5, -5.0, -5.0]
        assert int(optimizer.iterations.numpy()) == 5
        assert int(optimizer._agg_helper.counter.numpy()) == 1


@scenario
def some_are_computed_and_others_given() -> None:
    for eagerly in (True, False):
        x, y, unused = (tf.Variable([0.0]) for _ in range(3))
        optimizer = summing()

        def step(optimizer: Any = optimizer, x: Any = x, y: Any = y, unused: Any = unused) -> None:
            (gradient,) = computed(optimizer, x)
            optimizer.apply_gradients([(own(), y), (gradient * 2.0, x), (None, unused)])

        with counted(optimizer) as counts:
            (step if eagerly else tf.function(step))()
        assert (value(x), value(y)) == (-6.0, -3.0)
        assert counts[:2] == [1, 2]
    optimizer = summing(backward_passes_per_step=2)
    (gradient,) = computed(optimizer, x)
    with pytest.raises(ValueError, match="1 of 2 are not of compute_gradients"):
        optimizer.apply_gradients([(own(), y), (gradient * 2.0, x)])


@scenario
def what_was_computed_together_may_be_applied_apart() -> None:
    x, y = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = summing()
    if IS_KERAS_3:
        optimizer.build([x, y])
    else:
        optimizer.apply_gradients([(tf.zeros([1]), x), (tf.zeros([1]), y)])

    @tf.function
    def step() -> None:
        of_x, of_y = computed(optimizer, x, y)
        optimizer.apply_gradients([(of_x * 1.0, x)])
        optimizer.apply_gradients([(of_y * 1.0, y)])

    step()
    assert (value(x), value(y)) == (-3.0, -3.0)


@scenario
def a_function_is_traced_again() -> None:
    x = tf.Variable([0.0])
    optimizer = summing()

    @tf.function
    def step(is_own: bool, times: Any) -> None:
        gradients = [own()] if is_own else computed(optimizer, x)
        optimizer.apply_gradients([(gradients[0] * times, x)])

    expected = 0.0
    for is_own, times in product((False, True, False), (tf.constant(1.0), tf.constant([1.0]), 2.0)):
        step(is_own, times)
        expected -= 6.0 if isinstance(times, float) else 3.0
        assert value(x) == expected
    assert step.experimental_get_tracing_count() >= 6


@scenario
def a_trace_that_breaks_off_leaves_nothing() -> None:
    x = tf.Variable([0.0])
    optimizer = summing()
    if not IS_KERAS_3:  # which makes its variables in the first trace of a function alone
        optimizer.build([x])

    @tf.function
    def step(breaks_off: bool, is_own: bool) -> None:
        gradients = [own()] if is_own else computed(optimizer, x)
        if breaks_off:
            raise ValueError("of the program")
        optimizer.apply_gradients([(gradients[0] * 1.0, x)])

    with pytest.raises(ValueError, match="of the program") as raised:
        step(True, False)
    with warnings.catch_warnings():
        # The graph lives on with the exception.
        warnings.simplefilter("ignore")
        step(False, True)
        assert value(x) == -3.0
        optimizer.apply_gradients([(own(), x)])
        assert value(x) == -6.0
    step(False, False)
    assert value(x) == -9.0
    del raised


def of_a_pass(x: Any) -> Any:
    """``own``, of a pass that reads the variable."""
    with tf.GradientTape() as tape:
        total = loss(x)
    return tape.gradient(total, x) + 0.0 * x


@scenario
def eagerly_a_new_pass_is_told_from_what_was_looked_at() -> None:
    for average in (False, True):
        x = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) if average else summing()
        tf.norm(computed(optimizer, x)[0])
        with pytest.warns(UserWarning, match="it cannot be told"):
            optimizer.apply_gradients([(of_a_pass(x), x)])
        assert value(x) == (-1.5 if average else -3.0)
        # With weight decay, which reads the variable: an average is right.
        if average:
            optimizer.apply_gradients([(computed(optimizer, x)[0] + 2.0 * x, x)])
            assert value(x) == 0.0
        optimizer.apply_gradients([(computed(optimizer, x)[0] * 1.0, x)])
        assert value(x) == (-1.5 if average else -6.0)


@scenario
def what_another_function_computed_is_told_of() -> None:
    x = tf.Variable([0.0])
    optimizer = summing()
    (gradient,) = tf.function(lambda: computed(optimizer, x))()
    optimizer.apply_gradients([(gradient, x)], experimental_aggregate_gradients=False)
    with pytest.warns(UserWarning, match="pass skip_gradients_aggregation=True"):
        optimizer.apply_gradients([(own(), x)])
    # Once is enough; others would be errors here.
    optimizer.apply_gradients([(own(), x)])
    assert value(x) == -9.0


class Clipping(keras.Sequential):  # type: ignore[misc]
    """Clips, so that nothing changes, between what the optimizer computes and applies."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            total = tf.reduce_mean(tf.square(self(x, training=True) - y))
        pairs = self.optimizer.compute_gradients(total, self.trainable_variables, tape=tape)
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1e6)
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        return {"loss": total}


@scenario
def a_model_that_clips_is_that_of_one_process() -> None:
    x, y = batches()
    alone = made_model(1)
    alone.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    alone.fit(x.reshape(-1, 3), y.reshape(-1, 1), batch_size=16, shuffle=False, verbose=0, epochs=2)
    for make, eagerly in product(SGDS, (False, True)):
        of_one = made_model(1)
        model = Clipping(of_one.layers)
        model.build((None, 3))
        # The mean of two batches is half of the sum of theirs.
        model.compile(hvd.DistributedOptimizer(make(0.05), op=hvd.Sum), run_eagerly=eagerly)
        model.fit(*mine(), batch_size=8, shuffle=False, verbose=0, epochs=2)
        assert all_have(each.numpy() for each in model.weights)
        for weight, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
            assert np.allclose(weight, expected, atol=1e-5)


@scenario
def a_model_is_fitted_after_gradients_were_looked_at() -> None:
    x, y = mine()
    for eagerly in (False, True):
        model = made_model(1)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))

        def total(model: Any = model) -> Any:
            return tf.reduce_mean(tf.square(model(x) - y))

        optimizer.compute_gradients(total, model.trainable_variables)
        model.compile(optimizer, keras.losses.MeanSquaredError(), run_eagerly=eagerly)
        # With Keras 2 ``fit`` calls compute_gradients itself: there is no doubt.
        expected = pytest.warns(UserWarning, match="combined gradients") if IS_KERAS_3 else warnings.catch_warnings()
        with expected:
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        assert all_have(each.numpy() for each in model.weights)


@scenario
def variables_of_keras_are_those_of_tensorflow() -> None:
    if IS_KERAS_3:
        x = keras.Variable([0.0])
        optimizer = summing()
        pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(x.value * own()), [x.value])
        optimizer.apply_gradients([(pairs[0][0] * 1.0, x)])
        assert value(x) == -3.0
