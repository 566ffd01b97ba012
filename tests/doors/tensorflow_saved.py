"""SavedModels of functions with Shoal's operations: written by one job, run by another. test_tensorflow_saved.py runs them."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import shoal.tensorflow as stf

SPEC = [tf.TensorSpec([4])]


def model(compiled: bool) -> Any:
    @tf.function(jit_compile=compiled, autograph=False)
    def total(x: Any) -> Any:
        # The second one of this name has less to wait for.
        first = stf.allreduce(tf.math.cumsum(tf.sin(x)), "sum", name="again")
        return first, stf.allreduce(x, "sum", name="again")

    @tf.function(jit_compile=compiled)
    def rows(x: Any) -> Any:
        return stf.allgather(x)

    made = tf.Module()
    for function in (total, rows):
        whole = tf.function(function.python_function, input_signature=SPEC, jit_compile=compiled, autograph=False)
        setattr(made, function.python_function.__name__, whole)
    if not compiled:  # else it is refused
        made.twice = tf.function(lambda x: [*total(x), *total(2.0 * x)], input_signature=SPEC)
    return made


def write(path: str, compiled: bool) -> None:
    stf.init()
    made = model(compiled)
    tf.saved_model.save(made, f"{path}/{stf.rank()}")
    # What was saved is no part of this process: the same functions work here.
    check(made)


def read(path: str) -> None:
    loaded = tf.saved_model.load(f"{path}/0")
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"allgather of '.*': .*call shoal\.init\(\) first"):
        loaded.rows(tf.ones([4]))
    stf.init()
    for _ in range(3):
        check(loaded)


def read_with_more_ranks(path: str) -> str:
    loaded = tf.saved_model.load(f"{path}/0")
    stf.init()
    with pytest.raises(tf.errors.FailedPreconditionError) as raised:
        loaded.rows(tf.ones([4]))
    return str(raised.value)


def check(made: Any) -> None:
    ones = np.ones(4)
    results = [*made.total(tf.ones([4])), *made.total(tf.fill([4], 2.0))]
    if hasattr(made, "twice"):
        results += made.twice(tf.ones([4]))
    expected = [2.0 * np.cumsum(np.sin(ones)), 2.0 * ones, 2.0 * np.cumsum(np.sin(2.0 * ones)), 4.0 * ones]
    for index, result in enumerate(results):
        assert np.allclose(result, expected[index % 4]), (index, results)
    assert made.rows(tf.fill([4], float(stf.rank()))).numpy().tolist() == [0.0] * 4 + [1.0] * 4


def refuse_what_cannot_be_ordered(path: str) -> str:
    stf.init()
    made = tf.Module()

    def powers(x: Any) -> Any:
        for _ in tf.range(3):
            x = stf.allreduce(x, "sum")
        return x

    inner = tf.function(stf.allreduce, jit_compile=True)
    for function, compiled in ((powers, True), (lambda x: inner(x) + inner(2.0 * x), False)):
        made.function = tf.function(function, input_signature=SPEC, jit_compile=compiled)
        with pytest.raises(NotImplementedError) as raised:
            tf.saved_model.save(made, path)
    return str(raised.value)
