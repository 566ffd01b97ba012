"""What the collective operations promise in what XLA compiles, for 3 ranks. test_tensorflow_xla.py runs them."""

import ctypes
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios
from tensorflow_collectives import FLOATS, INTEGERS, numbers, of_rank
from tensorflow_places import in_turn

import shoal.tensorflow as shoal
from shoal import Group
from shoal.tensorflow import library

scenario = Scenarios(lambda: shoal.init())

_without_futures = False


def run_all() -> dict[str, str]:
    return scenario.run_each()


@scenario
def calls_of_a_program_are_on_their_way_together() -> None:
    count, x = 8, tf.ones([400])  # XLA makes calls of smaller ones in turn
    if _without_futures:
        return
    if shoal.rank() == 0:
        together = compiled(lambda: [shoal.allreduce(x + float(i), name=f"together {i}") for i in range(count)])
        assert [float(each[0]) for each in together()] == [1.0 + i for i in range(count)]
    else:
        for i in reversed(range(count)):
            shoal.allreduce(x + float(i), name=f"together {i}")


@scenario
def calls_end_by_futures_where_xla_has_them() -> None:
    futures = library.native.shoal_tensorflow_xla_futures
    futures.restype = ctypes.c_int64
    before = futures()
    compiled(shoal.allreduce)(tf.ones([2]))
    assert futures() - before == (0 if _without_futures else 1)


def run_without_futures() -> dict[str, str]:
    """As where XLA has none: each call waits in the thread that made it."""
    global _without_futures
    _without_futures = True
    shoal.init()
    library.native.shoal_tensorflow_distrust_xla(1)
    return scenario.run_each()


def compiled(function: Any) -> Any:
    return tf.function(function, jit_compile=True)


@scenario
def every_operator_reduces_every_dtype() -> None:
    ops = ("sum", "min", "max", "product", "mean")

    @compiled
    def every(x: Any) -> Any:
        return {op: shoal.allreduce(x, op) for op in ops}

    for dtype in (*FLOATS, *INTEGERS):
        everyones = np.stack([numbers(of_rank(rank, dtype)) for rank in range(shoal.size())])
        expected = [everyones.sum(0), everyones.min(0), everyones.max(0), everyones.prod(0), numbers(of_rank(1, dtype))]
        results = every(of_rank(shoal.rank(), dtype))
        for op, right in zip(ops, expected, strict=True):
            assert results[op].dtype == dtype
            if op != "product" or dtype not in (tf.int8, tf.uint8):  # wraps
                assert np.array_equal(numbers(results[op]), right), (dtype, op, results[op])


@scenario
def bool_has_any_and_all_and_no_sum() -> None:
    mine = tf.constant([True, shoal.rank() == 1, False])
    assert compiled(lambda x: shoal.allreduce(x, "max"))(mine).numpy().tolist() == [True, True, False]
    assert compiled(lambda x: shoal.broadcast(x, 1))(mine).numpy().tolist() == [True, True, False]
    with pytest.raises(TypeError, match="bool has no mean"):
        compiled(shoal.allreduce)(mine)
    with pytest.raises(TypeError, match="complex64 cannot be sent"):
        compiled(shoal.allreduce)(tf.ones([2], tf.complex64))


@scenario
def an_input_that_is_used_elsewhere_is_left_as_it_is() -> None:
    mine = of_rank(shoal.rank())

    @compiled
    def also_used(x: Any) -> Any:
        made = x * 2.0
        return shoal.allreduce(made, "sum"), made + 1.0, shoal.broadcast(made, 0), shoal.allreduce(x, "max")

    total, kept, first, greatest = also_used(mine)
    assert np.array_equal(mine, of_rank(shoal.rank()))
    assert np.array_equal(kept, mine * 2.0 + 1.0)
    assert np.array_equal(total, 2.0 * sum(numbers(of_rank(rank)) for rank in range(3)))
    assert np.array_equal(first, of_rank(0) * 2.0)
    assert np.array_equal(greatest, of_rank(2))


@scenario
def rows_are_gathered_cut_and_exchanged() -> None:
    rank, size = shoal.rank(), shoal.size()
    gathered = compiled(shoal.allgather)(of_rank(rank))
    assert gathered.shape == [2 * size, 3]
    assert np.array_equal(gathered, np.concatenate([of_rank(other) for other in range(size)]))
    mine = tf.reshape(tf.range(8.0), [4, 2]) + float(rank)
    rows = [slice(0, 2), slice(2, 3), slice(3, 4)][rank]  # the first members get one more
    assert np.array_equal(compiled(shoal.reducescatter)(mine), (np.arange(8.0).reshape(4, 2) + 1.0)[rows])
    received, counts = compiled(shoal.alltoall)(tf.range(2 * size) + 10 * rank)
    assert counts.numpy().tolist() == [2] * size
    assert received.numpy().tolist() == [10 * other + 2 * rank + each for other in range(size) for each in (0, 1)]
    assert compiled(lambda x: shoal.alltoall(x, [2] * size)[0])(tf.range(2 * size)).shape == [2 * size]


@scenario
def scalars_and_empty_tensors_go_too() -> None:
    assert compiled(lambda x: shoal.allreduce(x, "sum"))(tf.constant(1.0)).numpy() == 3.0
    assert compiled(shoal.allreduce)(tf.zeros([0, 3])).shape == [0, 3]
    assert compiled(shoal.allgather)(tf.zeros([0, 3])).shape == [0, 3]
    with pytest.raises(ValueError, match="at least rank 1"):
        compiled(shoal.allgather)(tf.constant(1.0))


@scenario
def many_calls_of_a_program_are_told_apart() -> None:
    """In whichever order XLA makes them."""

    @compiled
    def all_of_them(x: Any) -> Any:
        results = [shoal.allreduce(tf.sin(x) * float(place), "sum") for place in range(20)]
        return tf.stack([tf.reduce_max(result) for result in results])

    for size in (5, 5000):
        assert np.allclose(all_of_them(tf.fill([size], np.pi / 2)), 3.0 * np.arange(20.0))


@scenario
def what_nobody_uses_is_called_all_the_same() -> None:
    @compiled
    def unused(x: Any) -> Any:
        shoal.allreduce(x, name="unused")
        return x

    # Rank 0 calls it eagerly: it would wait for ever for the others.
    for _ in range(2):
        shoal.allreduce(tf.ones([2]), name="unused") if shoal.rank() == 0 else unused(tf.ones([2]))


@scenario
def calls_of_one_name_are_made_in_the_programs_order() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return shoal.allreduce(x, "sum")

    @compiled
    def outer(x: Any) -> Any:
        first, second = inner(x), inner(x * 10.0)  # the same name, and neither needs the other
        named = [shoal.allreduce(x * factor, "sum", name="again") for factor in (100.0, 1000.0)]
        total = tf.zeros_like(x)
        for number in tf.range(3):
            total += shoal.allreduce(x * tf.cast(number, tf.float32), "sum")
        return [first, second, *named, total]

    for _ in range(3):
        results = [float(result[0]) for result in outer(tf.ones([3000]))]
        assert results == [3.0, 30.0, 300.0, 3000.0, 9.0]


@scenario
def compiled_functions_that_another_one_calls_keep_its_order() -> None:
    weight, other = tf.Variable([1.0, 1.0]), tf.Variable([1.0, 1.0, 1.0])

    @compiled
    def metric(variable: Any, x: Any) -> Any:
        return shoal.allreduce(tf.reduce_sum(variable * x))

    @compiled
    def train(variable: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        return shoal.DistributedGradientTape(tape).gradient(loss, variable)[0]

    @tf.function
    def several(x: Any) -> Any:
        slow = tf.ensure_shape(in_turn(x, 0), []), tf.ensure_shape(in_turn(100.0 * x, 1), [])
        metrics = metric(weight, slow[0]), metric(weight, slow[1])
        return metrics, (train(weight, slow[0]), train(other, slow[1]))

    metric(weight, tf.constant(1.0))
    for _ in range(4):
        metrics, gradients = several(tf.constant(1.0))
        assert [float(each) for each in metrics] == [2.0, 200.0]
        assert [float(each) for each in gradients] == [1.0, 100.0]


@scenario
def branches_and_loops_call_as_often_as_they_run() -> None:
    @compiled
    def powers(x: Any) -> Any:
        for _ in tf.range(3):
            x = shoal.allreduce(x, "sum")
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: shoal.allreduce(x, "max"), lambda: x)

    assert powers(tf.constant(1.0)).numpy() == 27.0


@scenario
def a_group_has_its_own_members() -> None:
    group = Group([2, 0])
    if shoal.rank() == 1:
        return
    gathered = compiled(lambda x: shoal.allgather(x, group=group))(tf.constant([shoal.rank()]))
    assert gathered.numpy().tolist() == [2, 0]
    sent = compiled(lambda x: shoal.broadcast(x, root=2, group=group))(tf.constant(shoal.rank()))
    assert sent.numpy() == 2


def gradients_of(operation: Any) -> list[Any]:
    """By a tape within what is compiled, and by one outside."""
    mine = of_rank(shoal.rank())

    def loss_of(x: Any) -> Any:
        return tf.reduce_sum(operation(x) * float(shoal.rank() + 1))

    def within(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(x)
        return tape.gradient(loss, x)

    with tf.GradientTape() as tape:
        tape.watch(mine)
        loss = compiled(loss_of)(mine)
    return [compiled(within)(mine), tape.gradient(loss, mine)]


@scenario
def gradients_go_through() -> None:
    ones = np.ones((2, 3))
    for result in gradients_of(lambda x: shoal.allreduce(x, "sum")):
        assert np.array_equal(result, 6.0 * ones)
    for operation in (shoal.allreduce, shoal.allgather):
        for result in gradients_of(operation):
            assert np.array_equal(result, 2.0 * ones)
    for result in gradients_of(lambda x: shoal.broadcast(x, 1)):
        assert np.array_equal(result, (2.0 if shoal.rank() == 1 else 0.0) * ones)
    for result in gradients_of(lambda x: shoal.reducescatter(tf.reshape(x, [3, 2]))):
        assert np.array_equal(np.reshape(result, [3, 2]), np.outer([1.0, 2.0, 3.0], [1.0, 1.0]))
    for result in gradients_of(lambda x: shoal.reducescatter(x, "sum")):  # rank 2 gets no row
        assert np.array_equal(result, np.outer([3.0, 6.0], np.ones(3)))
    for result in gradients_of(lambda x: shoal.alltoall(tf.reshape(x, [6]))[0]):
        assert np.array_equal(np.reshape(result, [6]), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    with pytest.raises(LookupError, match="max over the ranks has no gradient"):
        gradients_of(lambda x: shoal.allreduce(x, "max"))


@scenario
def ranks_that_disagree_hear_it() -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'odd': ranks disagree on the shape: rank \d"):
        compiled(lambda x: shoal.allreduce(x, name="odd"))(tf.ones([3 + shoal.rank()]))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'rows': .*what came has 1, 2, 3 rows"):
        compiled(lambda x: shoal.allgather(x, name="rows"))(tf.ones([1 + shoal.rank()]))
    assert compiled(shoal.allreduce)(tf.ones([2])).numpy().tolist() == [1.0, 1.0]


@scenario
def a_rank_that_is_not_compiled_meets_those_that_are() -> None:
    for _ in range(2):
        function = tf.function(lambda x: shoal.allreduce(x, "sum", name="both"), jit_compile=shoal.rank() != 1)
        assert function(tf.ones([2])).numpy().tolist() == [3.0, 3.0]


@scenario
def what_cannot_be_compiled_says_what_to_do() -> None:
    unknown = tf.function(shoal.allreduce, jit_compile=True, input_signature=[tf.TensorSpec([None, 3])])
    with pytest.raises(NotImplementedError, match=r"\(None, 3\) cannot be compiled by XLA.*leave out jit_compile"):
        unknown(tf.ones([2, 3]))
    with pytest.raises(NotImplementedError, match="alltoall of 4 rows to 3 members cannot be compiled"):
        compiled(lambda x: shoal.alltoall(x, [2, 1, 1]))(tf.ones([4]))
    with pytest.raises(NotImplementedError, match="splits that are not known"):
        compiled(lambda x, splits: shoal.alltoall(x, splits))(tf.ones([3]), tf.constant([1, 1, 1]))


@scenario
def names_of_any_letters_reach_the_other_ranks() -> None:
    name = 'a "name", \\ of\nletters: äß€'
    total = shoal.allreduce if shoal.rank() == 0 else compiled(shoal.allreduce)
    assert total(tf.ones([2]), "sum", name).numpy().tolist() == [3.0, 3.0]
