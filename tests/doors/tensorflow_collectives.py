"""What the collective operations for TensorFlow promise, for 3 ranks. test_tensorflow.py runs them."""

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios
from tensorflow_ways import Ways, add_to, numbers, of_rank, results

import shoal.tensorflow as shoal

scenario = Scenarios(lambda: shoal.init())


def run_all() -> dict[str, str]:
    return scenario.run_each()


WAYS: Ways = (lambda function: function, tf.function)

add_to(scenario, WAYS)


def both(function: Any, *arguments: Any) -> list[Any]:
    """What a function gives eagerly, and what in ``tf.function``."""
    return results(WAYS, function, *arguments)


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
def equal_calls_are_calls_of_their_own() -> None:
    @tf.function
    def twice(x: Any) -> Any:
        return shoal.allreduce(x, "sum", name="twice") + shoal.allreduce(x, "sum", name="twice")

    assert twice(tf.constant(1.0)).numpy() == 6.0


@scenario
def slices_of_all_members_come_together() -> None:
    slices = tf.IndexedSlices(of_rank(shoal.rank()), tf.constant([shoal.rank(), 5]), tf.constant([6, 3]))
    dense = sum(tf.convert_to_tensor(tf.IndexedSlices(of_rank(rank), [rank, 5], [6, 3])) for rank in range(3))
    for op, factor in (("sum", 1.0), ("mean", 1 / 3)):
        for result in both(lambda s, op=op: shoal.allreduce(s, op), slices):
            assert isinstance(result, tf.IndexedSlices)
            assert np.allclose(tf.convert_to_tensor(result), dense * factor)


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
