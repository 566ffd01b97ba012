"""What the collective operations for TensorFlow promise, for 3 ranks. test_tensorflow.py runs them."""

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios

import shoal.tensorflow as shoal
from shoal import Group

scenario = Scenarios(lambda: shoal.init())

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTEGERS = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)


def run_all() -> dict[str, str]:
    return scenario.run_each()


def of_rank(rank: int, dtype: Any = tf.float32) -> Any:
    """Small numbers, so that they are exact in every dtype."""
    return tf.cast(tf.reshape(tf.range(1, 7), [2, 3]) + rank, dtype)


def numbers(x: Any) -> Any:
    return np.asarray(tf.cast(x, tf.float64) if x.dtype.is_floating else x)


def both(function: Any, *arguments: Any) -> list[Any]:
    """What a function gives eagerly, and what in ``tf.function``."""
    return [function(*arguments), tf.function(function)(*arguments)]


@scenario
def every_operator_reduces_every_dtype() -> None:
    for dtype in (*FLOATS, *INTEGERS):
        everyones = np.stack([numbers(of_rank(rank, dtype)) for rank in range(shoal.size())])
        reduced = {
            "sum": everyones.sum(0),
            "min": everyones.min(0),
            "max": everyones.max(0),
            "product": everyones.prod(0),
        }
        if dtype in (tf.int8, tf.uint8):
            reduced.pop("product")  # wraps
        for op, expected in {**reduced, "mean": numbers(of_rank(1, dtype))}.items():
            for result in both(lambda x, op=op: shoal.allreduce(x, op), of_rank(shoal.rank(), dtype)):
                assert result.dtype == dtype
                assert np.array_equal(numbers(result), expected), (dtype, op, result)


@scenario
def bool_has_any_and_all_and_no_sum() -> None:
    mine = tf.constant([True, shoal.rank() == 1, False])
    for result in both(lambda x: shoal.allreduce(x, "max"), mine):
        assert result.numpy().tolist() == [True, True, False]
    assert shoal.allreduce(mine, "min").numpy().tolist() == [True, False, False]
    with pytest.raises(TypeError, match="bool has no mean"):
        shoal.allreduce(mine)


@scenario
def an_input_that_is_used_elsewhere_is_left_as_it_is() -> None:
    mine = of_rank(shoal.rank())
    shoal.allreduce(mine, "sum")
    assert np.array_equal(mine, of_rank(shoal.rank()))

    @tf.function
    def also_used(x: Any) -> Any:
        made = x * 2.0
        return shoal.allreduce(made, "sum"), made + 1.0, shoal.broadcast(made, 0)

    total, kept, first = also_used(mine)
    assert np.array_equal(kept, mine * 2.0 + 1.0)
    assert np.array_equal(total, 2.0 * sum(numbers(of_rank(rank)) for rank in range(shoal.size())))
    assert np.array_equal(first, of_rank(0) * 2.0)


@scenario
def a_variable_may_be_given_and_is_not_changed() -> None:
    variable = tf.Variable(of_rank(shoal.rank()))
    for result in both(lambda: shoal.allreduce(variable)):
        assert np.array_equal(result, of_rank(1))
    assert np.array_equal(variable, of_rank(shoal.rank()))
    for result in both(lambda: shoal.broadcast(variable, 2)):
        assert np.array_equal(result, of_rank(2))
    assert np.array_equal(variable, of_rank(shoal.rank()))


@scenario
def rows_are_gathered_in_the_order_of_the_ranks() -> None:
    mine = of_rank(shoal.rank())[: shoal.rank()]  # rank 0 has none
    expected = np.concatenate([numbers(of_rank(rank)[:rank]) for rank in range(shoal.size())])
    for result in both(shoal.allgather, mine):
        assert np.array_equal(result, expected)


@scenario
def large_arrays_are_gathered_too() -> None:
    mine = tf.fill([1000 * 1000 + shoal.rank()], float(shoal.rank()))
    gathered = shoal.allgather(mine)
    del mine
    gc.collect()
    ends = np.cumsum([0] + [1000 * 1000 + rank for rank in range(shoal.size())])
    for rank in range(shoal.size()):
        assert np.all(gathered.numpy()[ends[rank] : ends[rank + 1]] == rank)


@scenario
def the_first_members_get_a_row_more() -> None:
    mine = tf.reshape(tf.range(8.0), [4, 2]) + float(shoal.rank())
    rows = [slice(0, 2), slice(2, 3), slice(3, 4)][shoal.rank()]
    for result in both(lambda x: shoal.reducescatter(x, "mean"), mine):
        assert np.array_equal(result, (np.arange(8.0).reshape(4, 2) + 1.0)[rows])


@scenario
def every_member_gets_what_the_others_have_for_it() -> None:
    rank, size = shoal.rank(), shoal.size()
    splits = [member + rank for member in range(size)]
    mine = tf.repeat(tf.range(size) + 10 * rank, splits)
    expected = np.concatenate([np.full(rank + other, rank + 10 * other) for other in range(size)])
    for received, counts in both(lambda x: shoal.alltoall(x, splits), mine):
        assert np.array_equal(received, expected)
        assert counts.numpy().tolist() == [rank + other for other in range(size)]
    received, counts = shoal.alltoall(tf.range(2 * size))
    assert counts.numpy().tolist() == [2] * size
    with pytest.raises(tf.errors.InvalidArgumentError, match="add up"):
        shoal.alltoall(tf.range(4), [1, 1, 1])


@scenario
def many_are_in_flight_in_any_order() -> None:
    @tf.function
    def all_of_them(x: Any) -> Any:
        places = range(40) if shoal.rank() else range(39, -1, -1)
        results = {place: shoal.allreduce(x * float(place), name=f"place{place}") for place in places}
        return tf.stack([results[place] for place in range(40)])

    for _ in range(3):
        assert np.array_equal(all_of_them(tf.ones([5]))[:, 0], np.arange(40.0))


@scenario
def what_nobody_uses_is_called_all_the_same() -> None:
    @tf.function
    def unused(x: Any) -> Any:
        shoal.allreduce(x, name="unused")
        return x

    # Rank 0 calls it eagerly: it would wait for ever for the others.
    for _ in range(2):
        shoal.allreduce(tf.ones([2]), name="unused") if shoal.rank() == 0 else unused(tf.ones([2]))


@scenario
def equal_calls_are_calls_of_their_own() -> None:
    @tf.function
    def twice(x: Any) -> Any:
        return shoal.allreduce(x, "sum", name="twice") + shoal.allreduce(x, "sum", name="twice")

    assert twice(tf.constant(1.0)).numpy() == 6.0


@scenario
def loops_and_branches_call_as_often_as_they_run() -> None:
    @tf.function
    def powers(x: Any) -> Any:
        for _ in tf.range(3):
            x = shoal.allreduce(x, "sum")
        return x if shoal.size() == 1 else tf.cond(tf.reduce_sum(x) > 0.0, lambda: shoal.allreduce(x, "max"), lambda: x)

    assert powers(tf.constant(1.0)).numpy() == 27.0


@scenario
def slices_of_all_members_come_together() -> None:
    slices = tf.IndexedSlices(of_rank(shoal.rank()), tf.constant([shoal.rank(), 5]), tf.constant([6, 3]))
    dense = sum(tf.convert_to_tensor(tf.IndexedSlices(of_rank(rank), [rank, 5], [6, 3])) for rank in range(3))
    for op, factor in (("sum", 1.0), ("mean", 1 / 3)):
        for result in both(lambda s, op=op: shoal.allreduce(s, op), slices):
            assert isinstance(result, tf.IndexedSlices)
            assert np.allclose(tf.convert_to_tensor(result), dense * factor)


@scenario
def a_group_has_its_own_members() -> None:
    group = Group([2, 0])
    if shoal.rank() == 1:
        with pytest.raises(ValueError, match="rank 1 is not a member"):
            shoal.allreduce(tf.ones([2]), group=group)
        return
    for result in both(lambda: shoal.allgather(tf.constant([shoal.rank()]), group=group)):
        assert result.numpy().tolist() == [2, 0]
    assert shoal.broadcast(tf.constant(shoal.rank()), root=2, group=group).numpy() == 2
    with pytest.raises(ValueError, match="root 1 is not a member"):
        shoal.broadcast(tf.constant(0), root=1, group=group)


@scenario
def gradients_go_through() -> None:
    mine = of_rank(shoal.rank())

    def gradient(operation: Any) -> list[Any]:
        def of(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(operation(x) * float(shoal.rank() + 1))
            return tape.gradient(y, x)

        return both(of, mine)

    ones = np.ones((2, 3))
    for result in gradient(lambda x: shoal.allreduce(x, "sum")):
        assert np.array_equal(result, 6.0 * ones)
    for result in gradient(shoal.allreduce):
        assert np.array_equal(result, 2.0 * ones)
    for result in gradient(shoal.allgather):
        assert np.array_equal(result, 2.0 * ones)
    for result in gradient(lambda x: shoal.broadcast(x, 1)):
        assert np.array_equal(result, (2.0 if shoal.rank() == 1 else 0.0) * ones)
    for result in gradient(lambda x: shoal.reducescatter(tf.reshape(x, [3, 2]))):
        assert np.array_equal(np.reshape(result, [3, 2]), np.outer([1.0, 2.0, 3.0], [1.0, 1.0]))
    for result in gradient(lambda x: shoal.alltoall(tf.reshape(x, [6]))[0]):
        assert np.array_equal(np.reshape(result, [6]), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    with pytest.raises(LookupError, match="max over the ranks has no gradient"):
        gradient(lambda x: shoal.allreduce(x, "max"))


@scenario
def shapes_are_known_as_far_as_they_can_be() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def shapes(x: Any) -> Any:
        assert shoal.allreduce(x).shape.as_list() == [None, 3]
        assert shoal.allgather(x[:2]).shape.as_list() == [None, 3]
        assert shoal.reducescatter(x).shape.as_list() == [None, 3]
        assert shoal.alltoall(x)[1].shape.as_list() == [None]
        return x

    shapes(tf.ones([3, 3]))
    with pytest.raises(ValueError, match="at least rank 1"):
        tf.function(lambda: shoal.allgather(tf.constant(1.0))).get_concrete_function()


@scenario
def ranks_that_disagree_hear_it() -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'odd': ranks disagree on the shape: rank \d"):
        shoal.allreduce(tf.ones([3 + shoal.rank()]), name="odd")
    function = tf.function(lambda x: shoal.allreduce(x, name="odd in a function"))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'odd in a function'.*disagree"):
        function(tf.ones([2], tf.float32 if shoal.rank() else tf.float64))
    assert np.array_equal(shoal.allreduce(tf.ones([2])), [1.0, 1.0])


@scenario
def what_is_wrong_on_one_rank_the_others_hear() -> None:
    mine = tf.constant(1.0) if shoal.rank() == 1 else tf.ones([3])
    with pytest.raises(tf.errors.OpError) as raised:
        shoal.reducescatter(mine, name="scalar")
    assert "must have at least one dimension" in raised.value.message
    assert isinstance(raised.value, tf.errors.InvalidArgumentError) == (shoal.rank() == 1)


@scenario
def names_are_checked() -> None:
    for name in ("", "#1", "x" * 1025):
        with pytest.raises(ValueError, match="name must have"):
            shoal.allreduce(tf.ones([2]), name=name)
    with pytest.raises(ValueError, match="op must be one of"):
        shoal.allreduce(tf.ones([2]), "median")


@scenario
def a_saved_function_has_the_operation() -> None:
    module = tf.Module()
    module.total = tf.function(
        lambda x: shoal.allreduce(x, "sum", name="saved"), input_signature=[tf.TensorSpec([None])]
    )
    path = f"/tmp/shoal-test-saved-{shoal.rank()}-{id(module)}"
    try:
        tf.saved_model.save(module, path)
        assert tf.saved_model.load(path).total(tf.ones([2])).numpy().tolist() == [3.0, 3.0]
    finally:
        tf.io.gfile.rmtree(path)
