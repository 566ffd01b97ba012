"""That gradients are combined once where a function has branches, loops and calls. For 2 ranks.

test_keras_horovod.py runs it. As in horovod_keras_steps.py, sums show what was combined twice: they would double.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from horovod_keras import IS_KERAS_3, keras
from horovod_keras_steps import computed, of_a_pass, own, summing, value
from scenarios import Scenarios

import shoal.horovod.tensorflow.keras as hvd

scenario = Scenarios(lambda: hvd.init())


def run_all() -> dict[str, str]:
    with warnings.catch_warnings():
        # Where a scenario does not expect one, it is an error.
        warnings.filterwarnings("error", "compute_gradients has combined")
        return scenario.run_each()


def applied(optimizer: Any, x: Any, gradient: Any) -> Any:
    optimizer.apply_gradients([(gradient * 1.0, x)])
    return tf.constant(0)


def branched(step: Callable[[Any, Any, Any], Any]) -> list[float]:
    """What a variable is after a function that is given True, and after one that is given False."""
    values = []
    for which in (True, False):
        x = tf.Variable([0.0])
        optimizer = summing()
        optimizer.apply_gradients([(tf.zeros([1]), x)])  # makes what it has of the variable
        tf.function(lambda flag, optimizer=optimizer, x=x: step(optimizer, x, flag), autograph=False)(
            tf.constant(which)
        )
        values.append(value(x))
    return values


@scenario
def branches_and_loops() -> None:
    def applied_in_each(optimizer: Any, x: Any, flag: Any) -> None:
        (gradient,) = computed(optimizer, x)
        tf.cond(flag, lambda: applied(optimizer, x, gradient), lambda: applied(optimizer, x, gradient * 2.0))
        applied(optimizer, x, own())

    def computed_in_each(optimizer: Any, x: Any, flag: Any) -> None:
        gradient = tf.cond(flag, lambda: computed(optimizer, x)[0], lambda: 2.0 * computed(optimizer, x)[0])
        tf.cond(flag, lambda: applied(optimizer, x, gradient), lambda: tf.constant(0))
        applied(optimizer, x, own())

    def another_one_in_each(optimizer: Any, x: Any, flag: Any) -> None:
        tf.cond(
            flag,
            lambda: applied(optimizer, x, computed(optimizer, x)[0]),
            lambda: applied(optimizer, x, 2.0 * own()),
        )

    def once_more_in_one(optimizer: Any, x: Any, flag: Any) -> None:
        (gradient,) = computed(optimizer, x)
        tf.cond(
            flag,
            lambda: applied(optimizer, x, 2.0 * computed(optimizer, x)[0]),
            lambda: applied(optimizer, x, gradient),
        )

    def in_a_loop(optimizer: Any, x: Any, flag: Any) -> None:
        def body(count: Any) -> Any:
            applied(optimizer, x, computed(optimizer, x)[0])
            applied(optimizer, x, own())
            return (count + 1,)

        tf.while_loop(lambda count: count < 2, body, [tf.where(flag, 1, 0)])

    assert branched(applied_in_each) == [-6.0, -9.0]
    assert branched(computed_in_each) == [-6.0, -3.0]
    assert branched(another_one_in_each) == [-3.0, -6.0]
    assert branched(once_more_in_one) == [-6.0, -3.0]
    assert branched(in_a_loop) == [-6.0, -12.0]


@scenario
def a_branch_takes_its_own_beside_one_that_computes() -> None:
    def clips_or_not(optimizer: Any, x: Any, flag: Any) -> None:
        def clipped() -> Any:
            gradient = computed(optimizer, x)[0] * 1.0
            is_finite = tf.reduce_all(tf.math.is_finite(gradient))
            return tf.cond(is_finite, lambda: applied(optimizer, x, gradient), lambda: tf.constant(0))

        tf.cond(flag, clipped, lambda: applied(optimizer, x, of_a_pass(x)))

    def computes_or_applies(optimizer: Any, x: Any, flag: Any) -> None:
        def own_applied() -> Any:
            applied(optimizer, x, of_a_pass(x))
            return tf.zeros([1])

        tf.cond(flag, lambda: computed(optimizer, x)[0] * 1.0, own_applied)

    def switched(optimizer: Any, x: Any, flag: Any) -> None:
        branches = [lambda: computed(optimizer, x)[0] * 2.0, lambda: computed(optimizer, x)[0]]
        applied(optimizer, x, tf.switch_case(tf.cast(flag, tf.int32), branches))

    assert branched(clips_or_not) == [-3.0, -3.0]
    assert branched(computes_or_applies) == [0.0, -3.0]
    assert branched(switched) == [-3.0, -6.0]


@scenario
def a_pass_is_counted_once_in_branches() -> None:
    for which in (True, False):
        x = tf.Variable([0.0])
        optimizer = summing(backward_passes_per_step=2)

        @tf.function
        def step(flag: Any, optimizer: Any = optimizer, x: Any = x) -> None:
            if flag:
                gradient = computed(optimizer, x)[0] * 1.0
                if tf.reduce_all(tf.math.is_finite(gradient)):
                    applied(optimizer, x, gradient)
            else:
                applied(optimizer, x, of_a_pass(x))

        if IS_KERAS_3:
            optimizer.build([x])
        for _ in range(2):
            step(tf.constant(which))
        assert value(x) == -6.0
        assert int(optimizer._agg_helper.counter.numpy()) == 0


@scenario
def own_gradients_follow_in_another_branch_or_loop() -> None:
    def in_a_branch(optimizer: Any, x: Any, flag: Any) -> None:
        gradient = computed(optimizer, x)[0] * 1.0
        tf.cond(flag, lambda: applied(optimizer, x, gradient), lambda: tf.constant(0))
        tf.cond(tf.equal(flag, flag), lambda: applied(optimizer, x, own()), lambda: tf.constant(0))

    def in_a_loop(optimizer: Any, x: Any, flag: Any) -> None:
        gradient = computed(optimizer, x)[0] * 1.0
        tf.cond(flag, lambda: applied(optimizer, x, gradient), lambda: tf.constant(0))
        tf.while_loop(lambda i: i < 1, lambda i: (applied(optimizer, x, own()) + i + 1,), [tf.constant(0)])

    def after_a_look(optimizer: Any, x: Any, flag: Any) -> None:
        tf.norm(computed(optimizer, x)[0])
        applied(optimizer, x, tf.where(flag, own(), own()))

    assert branched(in_a_branch) == [-6.0, -3.0]
    assert branched(in_a_loop) == [-6.0, -3.0]
    assert branched(after_a_look) == [-3.0, -3.0]


@scenario
def what_a_branch_or_loop_gives_is_known() -> None:
    def of_one_branch(optimizer: Any, x: Any, flag: Any) -> None:
        def applied_at_once() -> Any:
            applied(optimizer, x, computed(optimizer, x)[0])
            return tf.zeros([1])

        applied(optimizer, x, tf.cond(flag, lambda: computed(optimizer, x)[0] * 1.0, applied_at_once))

    def of_a_loop(optimizer: Any, x: Any, flag: Any) -> None:
        def body(count: Any, total: Any) -> Any:
            return count + 1, total + computed(optimizer, x)[0]

        start = [tf.where(flag, 1, 0), tf.zeros([1])]
        applied(optimizer, x, tf.while_loop(lambda count, _: count < 2, body, start)[1])

    def changed_by_a_loop(optimizer: Any, x: Any, flag: Any) -> None:
        start = [tf.where(flag, 1, 0), computed(optimizer, x)[0]]
        doubled = tf.while_loop(lambda count, _: count < 2, lambda count, each: (count + 1, each * 2.0), start)
        applied(optimizer, x, doubled[1])

    assert branched(of_one_branch) == [-3.0, -3.0]
    assert branched(of_a_loop) == [-3.0, -6.0]
    assert branched(changed_by_a_loop) == [-6.0, -12.0]


@scenario
def what_functions_that_are_called_give_is_known() -> None:
    def computed_there(optimizer: Any, x: Any, flag: Any) -> None:
        gradient = tf.function(lambda: computed(optimizer, x)[0] * 1.0)()
        applied(optimizer, x, tf.where(flag, gradient, 2.0 * gradient))

    def changed_there(optimizer: Any, x: Any, flag: Any) -> None:
        doubled = tf.function(lambda gradient: gradient * 2.0)
        applied(optimizer, x, doubled(computed(optimizer, x)[0]))
        applied(optimizer, x, doubled(tf.where(flag, own(), own())))

    assert branched(computed_there) == [-3.0, -6.0]
    assert branched(changed_there) == [-12.0, -12.0]


@scenario
def in_doubt_averages_are_right_and_it_is_told() -> None:
    def of_either_branch(optimizer: Any, x: Any, flag: Any) -> None:
        applied(optimizer, x, tf.cond(flag, lambda: computed(optimizer, x)[0], lambda: of_a_pass(x)))

    def computed_before_the_loop(optimizer: Any, x: Any, flag: Any) -> None:
        def body(count: Any, gradient: Any) -> Any:
            applied(optimizer, x, gradient)
            return count + 1, of_a_pass(x)

        tf.while_loop(
            lambda count, _: count < 2, body, [tf.where(flag, 1, 0), computed(optimizer, x)[0]], maximum_iterations=9
        )

    def for_the_next_turn(optimizer: Any, x: Any, flag: Any) -> None:
        def body(count: Any, gradient: Any) -> Any:
            applied(optimizer, x, gradient)
            return count + 1, computed(optimizer, x)[0]

        tf.while_loop(lambda count, _: count < 3, body, [tf.where(flag, 1, 0), tf.zeros([1])])

    for step, expected in (
        (of_either_branch, [-1.5, -1.5]),
        (computed_before_the_loop, [-1.5, -3.0]),
        (for_the_next_turn, [-1.5, -3.0]),
    ):
        for which, after in zip((True, False), expected, strict=True):
            x = tf.Variable([0.0])
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
            optimizer.apply_gradients([(tf.zeros([1]), x)])
            run = tf.function(lambda flag, o=optimizer, x=x, step=step: step(o, x, flag), autograph=False)
            with pytest.warns(UserWarning, match="it cannot be told") as told:
                run(tf.constant(which))
            assert len([each for each in told if "it cannot be told" in str(each.message)]) == 1
            assert value(x) == after, (step.__name__, which, value(x))


@scenario
def functions_that_look_at_gradients_and_apply_their_own_are_no_doubt() -> None:
    x = tf.Variable([0.0])
    optimizer = summing()

    @tf.function
    def step(scale: Any) -> None:
        tf.norm(computed(optimizer, x)[0])
        applied(optimizer, x, own() * scale)

    step(tf.constant(1.0))
    step(tf.constant([1.0]))  # another trace
    assert step.experimental_get_tracing_count() >= 2
    assert value(x) == -6.0


@scenario
def own_gradients_that_a_loop_carries_are_combined_without_a_word() -> None:
    def summed_up(optimizer: Any, x: Any, flag: Any) -> None:
        def body(count: Any, total: Any) -> Any:
            applied(optimizer, x, total)
            return count + 1, of_a_pass(x)

        tf.while_loop(lambda count, _: count < 3, body, [tf.where(flag, 1, 0), tf.zeros([1])])

    assert branched(summed_up) == [-3.0, -6.0]
