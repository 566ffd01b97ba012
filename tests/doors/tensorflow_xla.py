"""What the collective operations promise in what XLA compiles, for 3 ranks. test_tensorflow_xla.py runs them."""

import ctypes
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios
from tensorflow_places import in_turn
from tensorflow_ways import add_to

import shoal.tensorflow as shoal
from shoal.tensorflow import library

scenario = Scenarios(lambda: shoal.init())

_without_futures = False


def compiled(function: Any) -> Any:
    return tf.function(function, jit_compile=True)


add_to(scenario, [compiled])


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
def a_compiled_call_and_one_that_is_not_keep_the_programs_order() -> None:
    weight = tf.Variable([1.0, 1.0])

    def made(jit_compile: bool) -> tuple[Any, Any]:
        @tf.function(jit_compile=jit_compile)
        def total(x: Any) -> Any:
            return shoal.allreduce(x, name="both ways")

        @tf.function(jit_compile=jit_compile)
        def train(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * x)
            return shoal.DistributedGradientTape(tape).gradient(loss, weight)[0]

        return total, train

    (plain, plain_step), (fast, fast_step) = made(False), made(True)

    @tf.function
    def several(x: Any) -> Any:
        slow = [tf.ensure_shape(in_turn(factor * x, place), []) for place, factor in enumerate((1.0, 10.0, 100.0, 1e3))]
        calls = plain(slow[0]), fast(slow[1]), plain(slow[2]), fast(slow[3])
        steps = fast_step(slow[0]), plain_step(slow[1]), fast_step(slow[2]), plain_step(slow[3])
        return calls, steps

    for _ in range(4):
        for results in several(tf.constant(1.0)):
            assert [float(each) for each in results] == [1.0, 10.0, 100.0, 1000.0]


@scenario
def a_dtype_that_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match="complex64 cannot be sent"):
        compiled(shoal.allreduce)(tf.ones([2], tf.complex64))


@scenario
def rows_of_other_numbers_are_an_error_on_all_ranks() -> None:
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"allgather of 'rows' on rank \d \(.*\): .*came has 1, 2, 3 rows"
    ):
        compiled(lambda x: shoal.allgather(x, name="rows"))(tf.ones([1 + shoal.rank()]))
    with pytest.raises(ValueError, match="at least rank 1"):
        compiled(shoal.allgather)(tf.constant(1.0))


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
