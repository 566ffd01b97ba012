"""Functions that were traced in one job and run in a later one of the same process. test_tensorflow_jobs.py runs them.

What they compute is right for the job that they run in, or an error that says what to do.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import shoal.horovod.tensorflow as hvd
import shoal.tensorflow as stf
from shoal import Group
from shoal.tensorflow.averaging import average

Function = Callable[..., Any]
RANK = int(os.environ.get("RANK", "0"))
AGAIN = r"on rank \d .*trace the function again after shoal\.init\(\)"


def join(rank: int, size: int) -> None:
    """The next job of this process, on one machine."""
    stf.shutdown()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    hvd.init()


def traced(function: Function, compiled: bool) -> Function:
    return tf.function(function, jit_compile=compiled)


def mine() -> Any:
    return tf.constant([[1.0, 2.0]]) * float(stf.rank() + 1)


def slope(operation: Function, factor: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(operation(x) * factor)
    return tape.gradient(loss, x)


def slices(x: Any) -> Any:
    return stf.allreduce(tf.IndexedSlices(x, tf.constant([0]), tf.constant([1, 2]))).values


def gathered(x: Any, factor: Any) -> Any:
    return slope(stf.allgather, factor, x)


def scattered(x: Any) -> Any:
    return slope(lambda rows: stf.reducescatter(rows, "sum"), 1.0, tf.repeat(x, 6, axis=0))[0]


def sent(x: Any, factor: Any) -> Any:
    return slope(lambda tensor: stf.broadcast(tensor, 1), factor, x)


def exchanged(x: Any) -> Any:
    return stf.alltoall(tf.repeat(x, 6, axis=0))[1]


def _of_local_source(tape_of: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(x * 6.0)
    wrapped = tape_of(tape)
    wrapped.register_local_source(x)
    return wrapped.gradient(loss, [x])[0]


def local_gradient(x: Any) -> Any:
    return _of_local_source(stf.PartialDistributedGradientTape, x)


def local_gradient_of_horovod(x: Any) -> Any:
    return _of_local_source(hvd.DistributedGradientTape, x)


def integers(x: Any) -> Any:
    return hvd.allreduce(tf.cast(x, tf.int64) * 6)


def integer_rows(x: Any) -> Any:
    return hvd.reducescatter(tf.repeat(tf.cast(x, tf.int64) * 6, 6, axis=0))[0]


def right(name: str) -> Any:
    """What each gives on this rank of the job at hand."""
    size, rank = stf.size(), stf.rank()
    one = np.array([1.0, 2.0])
    return {
        "allreduce": [(size + 1) / 2 * one],
        "slices": [(each + 1) / size * one for each in range(size)],
        "gathered": [[float(size + 1) / 2] * 2],
        "scattered": [float(size)] * 2,
        "sent": [[float(size + 1) / 2 if rank == 1 else 0.0] * 2],
        "exchanged": [6 / size] * size,
        "integers": [(size + 1) / 2 * 6 * one],
        "integer_rows": (size + 1) / 2 * 6 * one,
    }[name]


FUNCTIONS: dict[str, Function] = {
    "allreduce": stf.allreduce,
    "slices": slices,
    "gathered": gathered,
    "scattered": scattered,
    "sent": sent,
    "exchanged": exchanged,
    "integers": integers,
    "integer_rows": integer_rows,
}
WITH_FACTOR = ("gathered", "sent")


def averaged(x: Any) -> Any:
    return average([x], ["x"])[0]


def averaged_by_horovod(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(x * x)
    return hvd.DistributedGradientTape(tape).gradient(loss, [x])[0]


AVERAGES: dict[str, Function] = {
    "averaged": averaged,
    "averaged_by_horovod": averaged_by_horovod,
    "local_gradient": local_gradient,
    "local_gradient_of_horovod": local_gradient_of_horovod,
}


def run(name: str, function: Function) -> Any:
    factor = [tf.constant(float(stf.rank() + 1))] if name in WITH_FACTOR else []
    return function(mine(), *factor)


def check(name: str, function: Function) -> None:
    result = run(name, function)
    assert np.allclose(result, right(name)), (name, result, right(name))


def refused(name: str, function: Function) -> str:
    with pytest.raises(tf.errors.FailedPreconditionError, match=AGAIN) as raised:
        run(name, function)
    return str(raised.value)


def after_a_job_of_more_ranks(compiled: bool) -> None:
    """3 ranks, then 2."""
    join(RANK, 3)
    functions = {name: traced(function, compiled) for name, function in FUNCTIONS.items()}
    averages = {name: traced(function, compiled) for name, function in AVERAGES.items()}
    for name, function in functions.items():
        check(name, function)
    for function in averages.values():
        function(mine())
    if RANK == 2:
        stf.shutdown()
        return
    join(RANK, 2)
    for name, function in functions.items():
        if compiled and name != "allreduce":
            message = refused(name, function)
            assert "for 3 ranks" in message or "of 3 ranks" in message, message
        else:
            check(name, function)
    for name, function in averages.items():
        assert "gradients" in refused(name, function)


def after_a_job_of_this_rank_alone(compiled: bool) -> None:
    """1 rank, then 3."""
    kept: dict[str, Function] = {}
    functions: dict[str, Function] = {}
    if RANK == 0:
        join(0, 1)
        kept = {name: traced(function, compiled) for name, function in AVERAGES.items()}
        functions = {name: traced(FUNCTIONS[name], compiled) for name in FUNCTIONS if name != "sent"}
        for name, function in kept.items():
            for _ in range(2):
                assert np.allclose(function(mine()), AVERAGES[name](mine()))
        for name, function in functions.items():
            check(name, function)
        join(0, 1)
        for name, function in kept.items():  # right there, too
            assert np.allclose(function(mine()), AVERAGES[name](mine()))
        own = {name: function(mine()) for name, function in kept.items()}
    join(RANK, 3)
    for name, function in kept.items():  # they average nothing
        assert np.allclose(function(mine()), own[name]), name
    for name in FUNCTIONS:
        if name == "sent":
            continue
        if compiled and name != "allreduce":
            if RANK == 0:
                with pytest.raises(tf.errors.FailedPreconditionError, match=AGAIN):
                    run(name, functions[name])
            continue
        check(name, functions[name] if RANK == 0 else traced(FUNCTIONS[name], compiled))


def averages_of_one_rank_leave_nothing_of_ours(folder: str) -> None:
    """``folder``: for a SavedModel."""
    join(0, 1)
    for name, function in AVERAGES.items():
        inner = tf.function(function)
        graph = inner.get_concrete_function(mine()).graph
        assert not [each.type for each in graph.get_operations() if "Shoal" in each.type], name
        # XLA has no kernel for operations of Shoal's.
        assert np.allclose(
            tf.function(lambda x, inner=inner: inner(x) * 2.0, jit_compile=True)(mine()), 2.0 * inner(mine())
        )
        compiled = tf.function(function, jit_compile=True).get_concrete_function(mine()).graph
        assert not [each.type for each in compiled.get_operations() if each.type == "XlaCallModule"], name
    module = tf.Module()
    module.step = tf.function(averaged_by_horovod, input_signature=[tf.TensorSpec([1, 2])])
    tf.saved_model.save(module, folder)


def of_a_job_that_is_over(compiled: bool) -> None:
    """A later job has not begun."""
    join(RANK, 3)
    functions = {name: traced(function, compiled) for name, function in (*FUNCTIONS.items(), *AVERAGES.items())}
    # Has nothing of Shoal's but the question who this rank is.
    alone = Group([RANK])
    functions["alone"] = traced(lambda x: average([x], ["x"], group=alone)[0], compiled)
    for name, function in functions.items():
        run(name, function)
    factors = {name: float(stf.rank() + 1) for name in WITH_FACTOR}
    x = mine()
    stf.shutdown()
    for name, function in functions.items():
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"call shoal\.init\(\) first"):
            function(x, *([tf.constant(factors[name])] if name in factors else []))


def as_another_rank(compiled: bool) -> None:
    """3 ranks, then the same ones in another order."""
    join(RANK, 3)
    functions = {name: traced(function, compiled) for name, function in FUNCTIONS.items()}
    for name, function in functions.items():
        check(name, function)
    join((RANK + 1) % 3, 3)
    for name, function in functions.items():
        if compiled and name in ("gathered", "sent"):
            refused(name, function)
        else:
            check(name, function)


def in_a_graph_of_version_1() -> None:
    v1 = tf.compat.v1
    join(RANK, 3)
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [1, 2])
        result = [slices(x), gathered(x, tf.constant(1.0)), sent(x, tf.constant(1.0))]
    for size in (3, 2):
        if size <= RANK:
            stf.shutdown()
            return
        join(RANK, size)
        with v1.Session(graph=graph) as session:
            found = session.run(result, {x: np.array([[1.0, 2.0]]) * (stf.rank() + 1)})
        assert np.allclose(found[0], right("slices"))
        assert np.allclose(found[1], 1.0)
        assert np.allclose(found[2], 1.0 if RANK == 1 else 0.0)
