"""What the collective operations promise in whichever way they are called, for 3 ranks.

tensorflow_collectives.py has these scenarios eagerly and in functions, tensorflow_xla.py in what XLA compiles.
"""

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios

import shoal.tensorflow as shoal
from shoal import Group

# What makes of a function what is called.
Way = Callable[[Any], Any]
Ways = Sequence[Way]

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTEGERS = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)

_scenarios: list[Callable[[Ways], None]] = []


def add_to(scenario: Scenarios, ways: Ways) -> None:
    """These scenarios, with these ways to call."""
    for function in _scenarios:
        scenario(update_wrapper(partial(function, ways), function))


def in_each_way(function: Callable[[Ways], None]) -> Callable[[Ways], None]:
    _scenarios.append(function)
    return function


def results(ways: Ways, function: Any, *arguments: Any) -> list[Any]:
    """What the function gives in each way."""
    return [way(function)(*arguments) for way in ways]


def of_rank(rank: int, dtype: Any = tf.float32) -> Any:
    """Small numbers, so that they are exact in every dtype."""
    return tf.cast(tf.reshape(tf.range(1, 7), [2, 3]) + rank, dtype)


def numbers(x: Any) -> Any:
    return np.asarray(tf.cast(x, tf.float64) if x.dtype.is_floating else x)


@in_each_way
def every_operator_reduces_every_dtype(ways: Ways) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        everyones = np.stack([numbers(of_rank(rank, dtype)) for rank in range(shoal.size())])
        expected = {
            "sum": everyones.sum(0),
            "min": everyones.min(0),
            "max": everyones.max(0),
            "product": everyones.prod(0),
            "mean": numbers(of_rank(1, dtype)),
        }
        if dtype in (tf.int8, tf.uint8):
            expected.pop("product")  # wraps

        def every(x: Any, ops: Any = tuple(expected)) -> Any:
            return {op: shoal.allreduce(x, op) for op in ops}

        for reduced in results(ways, every, of_rank(shoal.rank(), dtype)):
            for op, right in expected.items():
                assert reduced[op].dtype == dtype
                assert np.array_equal(numbers(reduced[op]), right), (dtype, op, reduced[op])


@in_each_way
def bool_has_any_and_all_and_no_sum(ways: Ways) -> None:
    mine = tf.constant([True, shoal.rank() == 1, False])
    for result in results(ways, lambda x: shoal.allreduce(x, "max"), mine):
        assert result.numpy().tolist() == [True, True, False]
    for result in results(ways, lambda x: shoal.allreduce(x, "min"), mine):
        assert result.numpy().tolist() == [True, False, False]
    for result in results(ways, lambda x: shoal.broadcast(x, 1), mine):
        assert result.numpy().tolist() == [True, True, False]
    for way in ways:
        with pytest.raises(TypeError, match="bool has no mean"):
            way(lambda x: shoal.allreduce(x))(mine)


@in_each_way
def an_input_that_is_used_elsewhere_is_left_as_it_is(ways: Ways) -> None:
    mine = of_rank(shoal.rank())

    def also_used(x: Any) -> Any:
        made = x * 2.0
        return shoal.allreduce(made, "sum"), made + 1.0, shoal.broadcast(made, 0), shoal.allreduce(x, "max")

    for total, kept, first, greatest in results(ways, also_used, mine):
        assert np.array_equal(mine, of_rank(shoal.rank()))
        assert np.array_equal(kept, mine * 2.0 + 1.0)
        assert np.array_equal(total, 2.0 * sum(numbers(of_rank(rank)) for rank in range(shoal.size())))
        assert np.array_equal(first, of_rank(0) * 2.0)
        assert np.array_equal(greatest, of_rank(2))


@in_each_way
def rows_are_gathered_cut_and_exchanged(ways: Ways) -> None:
    rank, size = shoal.rank(), shoal.size()
    for gathered in results(ways, shoal.allgather, of_rank(rank)):
        assert gathered.shape == [2 * size, 3]
        assert np.array_equal(gathered, np.concatenate([of_rank(other) for other in range(size)]))
    mine = tf.reshape(tf.range(8.0), [4, 2]) + float(rank)
    rows = [slice(0, 2), slice(2, 3), slice(3, 4)][rank]  # the first members get one more
    for cut in results(ways, lambda x: shoal.reducescatter(x, "mean"), mine):
        assert np.array_equal(cut, (np.arange(8.0).reshape(4, 2) + 1.0)[rows])
    for splits in (None, [2] * size):
        exchanged = results(ways, lambda x, splits=splits: shoal.alltoall(x, splits), tf.range(2 * size) + 10 * rank)
        for received, counts in exchanged:
            assert received.shape == [2 * size]
            assert counts.numpy().tolist() == [2] * size
            assert received.numpy().tolist() == [
                10 * other + 2 * rank + each for other in range(size) for each in (0, 1)
            ]


@in_each_way
def scalars_and_empty_tensors_go_too(ways: Ways) -> None:
    for result in results(ways, lambda x: shoal.allreduce(x, "sum"), tf.constant(1.0)):
        assert result.numpy() == 3.0
    for operation in (shoal.allreduce, shoal.allgather):
        for result in results(ways, operation, tf.zeros([0, 3])):
            assert result.shape == [0, 3]


@in_each_way
def what_nobody_uses_is_called_all_the_same(ways: Ways) -> None:
    def unused(x: Any) -> Any:
        shoal.allreduce(x, name="unused")
        return x

    for way in ways:
        call = way(unused)
        # Rank 0 calls it eagerly: it would wait for ever for the others.
        for _ in range(2):
            shoal.allreduce(tf.ones([2]), name="unused") if shoal.rank() == 0 else call(tf.ones([2]))


@in_each_way
def loops_and_branches_call_as_often_as_they_run(ways: Ways) -> None:
    def powers(x: Any) -> Any:
        for _ in tf.range(3):
            x = shoal.allreduce(x, "sum")
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: shoal.allreduce(x, "max"), lambda: x)

    for result in results(ways, powers, tf.constant(1.0)):
        assert result.numpy() == 27.0


@in_each_way
def a_group_has_its_own_members(ways: Ways) -> None:
    group = Group([2, 0])
    if shoal.rank() == 1:
        for way in ways:
            with pytest.raises(ValueError, match="rank 1 is not a member"):
                way(lambda: shoal.allreduce(tf.ones([2]), group=group))()
        return
    for result in results(ways, lambda x: shoal.allgather(x, group=group), tf.constant([shoal.rank()])):
        assert result.numpy().tolist() == [2, 0]
    for result in results(ways, lambda x: shoal.broadcast(x, root=2, group=group), tf.constant(shoal.rank())):
        assert result.numpy() == 2
    for way in ways:
        with pytest.raises(ValueError, match="root 1 is not a member"):
            way(lambda: shoal.broadcast(tf.constant(0), root=1, group=group))()


def _gradients(ways: Ways, operation: Any) -> list[Any]:
    """By a tape within what is called, and by one outside."""
    mine = of_rank(shoal.rank())

    def loss_of(x: Any) -> Any:
        return tf.reduce_sum(operation(x) * float(shoal.rank() + 1))

    def within(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(x)
        return tape.gradient(loss, x)

    gradients = []
    for way in ways:
        gradients.append(way(within)(mine))
        with tf.GradientTape() as tape:
            tape.watch(mine)
            loss = way(loss_of)(mine)
        gradients.append(tape.gradient(loss, mine))
    return gradients


@in_each_way
def gradients_go_through(ways: Ways) -> None:
    ones = np.ones((2, 3))
    for result in _gradients(ways, lambda x: shoal.allreduce(x, "sum")):
        assert np.array_equal(result, 6.0 * ones)
    for operation in (shoal.allreduce, shoal.allgather):
        for result in _gradients(ways, operation):
            assert np.array_equal(result, 2.0 * ones)
    for result in _gradients(ways, lambda x: shoal.broadcast(x, 1)):
        assert np.array_equal(result, (2.0 if shoal.rank() == 1 else 0.0) * ones)
    for result in _gradients(ways, lambda x: shoal.reducescatter(tf.reshape(x, [3, 2]))):
        assert np.array_equal(np.reshape(result, [3, 2]), np.outer([1.0, 2.0, 3.0], [1.0, 1.0]))
    for result in _gradients(ways, lambda x: shoal.reducescatter(x, "sum")):  # rank 2 gets no row
        assert np.array_equal(result, np.outer([3.0, 6.0], np.ones(3)))
    for result in _gradients(ways, lambda x: shoal.alltoall(tf.reshape(x, [6]))[0]):
        assert np.array_equal(np.reshape(result, [6]), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    for way in ways:
        # Where a function is traced, TensorFlow may put another error around it.
        with pytest.raises(Exception, match="max over the ranks has no gradient"):
            _gradients([way], lambda x: shoal.allreduce(x, "max"))


@in_each_way
def ranks_that_disagree_hear_it(ways: Ways) -> None:
    for way in ways:
        once = r"allreduce of 'odd' on rank \d \([^()]*\): ranks disagree on the shape: rank \d"
        with pytest.raises(tf.errors.FailedPreconditionError, match=once):
            way(lambda x: shoal.allreduce(x, name="odd"))(tf.ones([3 + shoal.rank()]))
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'odd type'.*disagree"):
            way(lambda x: shoal.allreduce(x, name="odd type"))(tf.ones([2], tf.float32 if shoal.rank() else tf.float64))
        assert way(lambda x: shoal.allreduce(x))(tf.ones([2])).numpy().tolist() == [1.0, 1.0]
