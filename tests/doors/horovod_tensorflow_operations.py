"""What Horovod's operations for TensorFlow promise, for 4 ranks. test_tensorflow_horovod.py runs them."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scenarios import Scenarios

import shoal.horovod.tensorflow as hvd

scenario = Scenarios(lambda: hvd.init())

INTEGERS = (tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def run_all() -> dict[str, str]:
    return scenario.run_each()


def ranks() -> range:
    return range(hvd.size())


def both(function: Any, *arguments: Any) -> list[Any]:
    """What a function gives eagerly, and what in ``tf.function``."""
    return [function(*arguments), tf.function(function)(*arguments)]


@scenario
def averages_of_integers_are_cut_toward_zero() -> None:
    mine = tf.constant([-1 if hvd.rank() == 0 else -2, 3, 2 * hvd.rank()])
    for dtype in (tf.int8, tf.int32, tf.int64):
        for result in both(hvd.allreduce, tf.cast(mine, dtype)):
            assert result.dtype == dtype
            assert result.numpy().tolist() == [-1, 3, 3]  # of -7, 12 and 12


@scenario
def integers_and_halves_are_scaled_in_more_bits() -> None:
    for dtype in (*INTEGERS, *FLOATS):
        x = tf.cast([3, 5, 7], dtype)
        wide = np.array([3.0, 5.0, 7.0])
        cut = np.trunc if dtype.is_integer else np.asarray
        for result in both(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), x):
            assert np.array_equal(tf.cast(result, tf.float64), cut(wide * 0.5) * 4), (dtype, result)
        for result in both(lambda x: hvd.allreduce(x, op=hvd.Average, postscale_factor=0.5), x):
            assert np.array_equal(tf.cast(result, tf.float64), cut(wide * 0.5)), (dtype, result)


@scenario
def a_factor_of_one_leaves_large_integers_as_they_are() -> None:
    large = 2**60 + 1  # not in float64

    def by(operation: Any, factor: Any) -> Any:
        # By itself: TensorFlow makes tensors of functions' defaults.
        return lambda x: operation(x, op=hvd.Sum, prescale_factor=factor, postscale_factor=factor)

    for one in (1, 1.0, np.float32(1.0), np.float64(1.0), np.int64(1)):
        for result in both(by(hvd.allreduce, one), tf.constant([large])):
            assert result.numpy().tolist() == [4 * large], type(one)
        for result in both(by(hvd.reducescatter, one), tf.constant([large] * 4)):
            assert result.numpy().tolist() == [4 * large], type(one)
    for two in (np.float32(2.0), tf.constant(2.0)):
        for result in both(by(hvd.allreduce, two), tf.constant([3])):
            assert result.numpy().tolist() == [48]


@scenario
def other_operators_and_the_older_argument() -> None:
    mine = tf.constant([hvd.rank() + 1.0, -1.0])
    for op, expected in ((hvd.Min, [1.0, -1.0]), (hvd.Max, [4.0, -1.0]), (hvd.Product, [24.0, 1.0])):
        for result in both(lambda x, op=op: hvd.allreduce(x, op=op), mine):
            assert result.numpy().tolist() == expected
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert hvd.allreduce(mine, average=False).numpy().tolist() == [10.0, -4.0]
    with pytest.raises(ValueError, match="both given"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="op=17 is none of"):
        hvd.allreduce(mine, op=17)


@scenario
def slices_of_all_ranks_come_together() -> None:
    slices = tf.IndexedSlices(tf.fill([1, 2], hvd.rank() + 1.0), tf.constant([hvd.rank() % 2]), tf.constant([2, 2]))
    for op, expected in ((hvd.Sum, [4.0, 6.0]), (hvd.Average, [1.0, 1.5])):
        for result in both(lambda s, op=op: hvd.allreduce(s, op=op), slices):
            assert isinstance(result, tf.IndexedSlices)
            assert tf.convert_to_tensor(result)[:, 0].numpy().tolist() == expected
    for arguments in ({"op": hvd.Min}, {"op": hvd.Adasum}, {"prescale_factor": 0.5}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError, match=r"tf\.IndexedSlices are"):
            hvd.allreduce(slices, **arguments)


@scenario
def groups_may_mix_dtypes_and_slices() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([1, 2]))

    def grouped() -> Any:
        first, between, last = hvd.grouped_allreduce(
            [tf.ones([2]), slices, tf.constant([hvd.rank()])], op=hvd.Sum, name="group"
        )
        return first, tf.convert_to_tensor(between), last

    for first, between, last in both(grouped):
        assert first.numpy().tolist() == [4.0, 4.0]
        assert between.numpy().tolist() == [[4.0, 4.0]]
        assert last.numpy().tolist() == [6]
    gathered = hvd.grouped_allgather([tf.fill([1], hvd.rank()), tf.ones([hvd.rank(), 1])])
    assert gathered[0].numpy().tolist() == [0, 1, 2, 3]
    assert gathered[1].shape == (6, 1)
    own, other = hvd.grouped_reducescatter([tf.range(4.0), tf.range(8)], op=hvd.Sum)
    assert own.numpy().tolist() == [4.0 * hvd.rank()]
    assert other.numpy().tolist() == [8 * hvd.rank(), 8 * hvd.rank() + 4]
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_reducescatter([]) == []


@scenario
def a_name_may_be_used_by_several_operations() -> None:
    @tf.function
    def several(x: Any) -> Any:
        # Different shapes: operations that were taken for each other would be an error.
        results = [hvd.allreduce(tf.repeat(x, count), op=hvd.Sum, name="same") for count in (1, 2, 3)]
        return [*results, hvd.broadcast(x, 3, name="same"), hvd.allgather(x, name="same")]

    for _ in range(10):
        *sums, first, gathered = several(tf.fill([1], float(hvd.rank())))
        assert [each.numpy().tolist() for each in sums] == [[6.0] * count for count in (1, 2, 3)]
        assert first.numpy().tolist() == [3.0]
        assert gathered.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]


@scenario
def a_graph_of_version_1_runs_in_a_session() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        average, received = hvd.allreduce(x), hvd.alltoall(x, tf.ones([4], tf.int32))
        slope = tf.gradients(hvd.allreduce(x, op=hvd.Sum), x)
        for step in range(3):
            given = {x: [step + hvd.rank(), 0.0, 1.0, 2.0]}
            assert session.run(average, given).tolist() == [step + 1.5, 0.0, 1.0, 2.0]
            assert session.run(slope[0], given).tolist() == [4.0] * 4
            rows, counts = session.run(received, given)
            assert counts.tolist() == [1] * 4
            expected = [step + rank for rank in ranks()] if hvd.rank() == 0 else [hvd.rank() - 1.0] * 4
            assert rows.tolist() == expected


@scenario
def compression_changes_what_travels() -> None:
    mine = tf.constant([1.0 + 2.0**-12 * hvd.rank(), 3.0])
    assert hvd.allreduce(mine, compression=hvd.Compression.fp16).numpy().tolist() == [1.0, 3.0]
    assert hvd.allreduce(mine, compression=hvd.Compression.fp16).dtype == tf.float32
    assert hvd.allreduce(mine, compression=hvd.Compression.bf16).numpy().tolist() == [1.0, 3.0]
    assert hvd.allreduce(tf.constant([7]), compression=hvd.Compression.fp16).numpy().tolist() == [7]
    assert hvd.reducescatter(tf.ones([4]), compression=hvd.Compression.fp16).dtype == tf.float32

    class Doubled(hvd.Compression.none):
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return tensor * 2.0, "context"

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            assert ctx == "context"
            return tensor / 4.0

    assert hvd.grouped_allreduce([tf.ones([1])], op=hvd.Sum, compression=Doubled)[0].numpy().tolist() == [2.0]


@scenario
def process_sets_have_operations_of_their_own() -> None:
    even, odd = hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])
    try:
        mine, others = (even, odd) if hvd.rank() % 2 == 0 else (odd, even)
        for result in both(lambda: hvd.allreduce(tf.constant([hvd.rank()]), op=hvd.Sum, process_set=mine)):
            assert result.numpy().tolist() == [sum(mine.ranks)]
        assert hvd.allgather(tf.constant([hvd.rank()]), process_set=mine).numpy().tolist() == mine.ranks
        assert hvd.broadcast(tf.constant(hvd.rank()), mine.ranks[1], process_set=mine).numpy() == mine.ranks[1]
        assert hvd.allgather_object(hvd.rank(), process_set=mine) == mine.ranks
        hvd.barrier(mine)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {hvd.rank()} is not in ProcessSet"):
            hvd.allreduce(tf.ones([1]), process_set=others)
        with pytest.raises(ValueError, match="not a member"):
            hvd.broadcast(tf.ones([1]), others.ranks[0], process_set=mine)
        for size, is_in, is_out in both(
            lambda: (
                hvd.size_op(mine.process_set_id),
                hvd.process_set_included_op(mine.process_set_id),
                hvd.process_set_included_op(others.process_set_id),
            )
        ):
            assert (int(size), int(is_in), int(is_out)) == (2, 1, 0)
        assert int(hvd.process_set_included_op(17)) == -3
        with pytest.raises(ValueError, match="no process set 17"):
            hvd.size_op(17)
    finally:
        hvd.remove_process_set(even)
        hvd.remove_process_set(odd)


@scenario
def who_this_rank_is_a_graph_finds_out_when_it_runs() -> None:
    for numbers in both(lambda: (hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op())):
        assert [int(number) for number in numbers] == [hvd.rank(), 4, hvd.local_rank(), hvd.local_size()]
        assert all(number.dtype == tf.int32 and number.shape == () for number in numbers)


@scenario
def rows_beyond_the_splits_go_to_none() -> None:
    mine = tf.reshape(tf.range(12.0), [6, 2]) + 100.0 * hvd.rank()
    for splits in (tf.ones([4], tf.int64), [1, 1, 1, 1]):
        for rows, counts in both(lambda x, splits=splits: hvd.alltoall(x, splits), mine):
            assert counts.numpy().tolist() == [1] * 4
            assert counts.dtype == (tf.int64 if isinstance(splits, tf.Tensor) else tf.int32)
            assert rows[:, 0].numpy().tolist() == [2.0 * hvd.rank() + 100.0 * rank for rank in ranks()]
    with tf.GradientTape() as tape:
        tape.watch(mine)
        rows, _ = hvd.alltoall(mine, [1, 1, 1, 1])
    gradient = tape.gradient(rows, mine, tf.ones([4, 2]))
    assert gradient[:, 0].numpy().tolist() == [1.0] * 4 + [0.0] * 2
    assert isinstance(hvd.alltoall(mine[:4]), tf.Tensor)
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits must be 4"):
        hvd.alltoall(mine, [4, 1, 1, 1])
    with pytest.raises(ValueError, match="in integers, got float32"):
        hvd.alltoall(mine, [1.0, 1.0, 1.0, 1.0])


@scenario
def rows_without_elements_are_moved_too() -> None:
    for result in both(lambda: hvd.allgather(tf.zeros([hvd.rank(), 0, 3]))):
        assert result.shape == (6, 0, 3)
    for rows, counts in both(lambda: hvd.alltoall(tf.zeros([4, 0]), [1, 1, 1, 1])):
        assert rows.shape == (4, 0)
        assert counts.numpy().tolist() == [1] * 4
    for result in both(lambda: hvd.reducescatter(tf.zeros([6, 0], tf.int32))):
        assert result.shape == ([2, 0] if hvd.rank() < 2 else [1, 0])
        assert result.dtype == tf.int32


@scenario
def this_ranks_rows_are_scaled_as_all_are() -> None:
    x = tf.fill([8, 1], 3) + tf.cast(hvd.rank(), tf.int32)
    for result in both(hvd.reducescatter, x):
        assert result.numpy().tolist() == [[4], [4]]  # 18 / 4
    for result in both(lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), x):
        assert result.numpy().tolist() == [[3 * (1 + 2 + 2 + 3)], [3 * (1 + 2 + 2 + 3)]]
    with pytest.raises(hvd.HorovodInternalError, match=r"Average or Sum, got hvd\.Min"):
        hvd.reducescatter(x, op=hvd.Min)


@scenario
def gradients_have_the_factors_too() -> None:
    x = tf.constant([1.0, 2.0])

    def gradient(operation: Any) -> list[Any]:
        def of(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(operation(x)) * float(hvd.rank())
            return tape.gradient(y, x)

        return both(of, x)

    for result in gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)):
        assert result.numpy().tolist() == [9.0, 9.0]  # 0 + 1 + 2 + 3 times 1.5
    for result in gradient(lambda x: hvd.grouped_allreduce([x, x])[1]):
        assert result.numpy().tolist() == [1.5, 1.5]
    for result in gradient(lambda x: hvd.reducescatter(tf.repeat(x, 2), op=hvd.Sum, postscale_factor=0.5)):
        assert np.allclose(result, [0.5 * 4 * (0 + 1), 0.5 * 4 * (2 + 3)])


def reference(tensors: list[Any]) -> Any:
    """Adasum, of Maleki et al. (2021), by halves."""
    if len(tensors) == 1:
        return tensors[0]
    pairs = []
    for a, b in zip(tensors[::2], tensors[1::2], strict=True):
        dot = np.vdot(a, b)
        pairs.append((1 - dot / (2 * np.vdot(a, a))) * a + (1 - dot / (2 * np.vdot(b, b))) * b)
    return reference(pairs)


@scenario
def adasum_is_that_of_the_paper() -> None:
    everyones = [np.random.default_rng(rank).normal(size=(3, 5)) for rank in ranks()]
    expected = reference(everyones)
    for dtype, close in ((tf.float64, 1e-12), (tf.float32, 1e-6), (tf.float16, 1e-2), (tf.bfloat16, 5e-2)):
        mine = tf.cast(everyones[hvd.rank()], dtype)
        for result in both(lambda x: hvd.allreduce(x, op=hvd.Adasum), mine):
            assert result.dtype == dtype
            assert np.allclose(tf.cast(result, tf.float64), expected, atol=close), (dtype, result - expected)

    def of_two(x: Any) -> Any:
        return hvd.grouped_allreduce([x, 2.0 * x], op=hvd.Adasum)

    for once, twice in both(of_two, tf.constant(everyones[hvd.rank()])):
        assert np.allclose(once, expected)
        assert np.allclose(twice, 2.0 * expected)
    with tf.GradientTape() as tape:
        x = tf.Variable([1.0])
        y = hvd.allreduce(x, op=hvd.Adasum)
    assert tape.gradient(y, x).numpy().tolist() == [1.0]
    with pytest.raises(TypeError, match="floating dtypes, got int32"):
        hvd.allreduce(tf.constant([1]), op=hvd.Adasum)


@scenario
def calls_of_adasum_in_a_graph_run_in_the_order_of_the_program() -> None:
    everyones = [np.full(3, rank + 1.0) for rank in ranks()]
    expected = reference(everyones)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        results = [
            hvd.allreduce(tf.constant(everyones[hvd.rank()]) * scale, op=hvd.Adasum) for scale in (1.0, 2.0, 3.0, 4.0)
        ]
        for result, scale in zip(session.run(results), (1.0, 2.0, 3.0, 4.0), strict=True):
            assert np.allclose(result, scale * expected)


@scenario
def adasum_wants_a_power_of_two_of_ranks() -> None:
    three = hvd.add_process_set([0, 1, 2])
    try:
        if hvd.rank() < 3:
            with pytest.raises(NotImplementedError, match=r"1, 2, 4, 8 ... ranks, and there are 3"):
                hvd.allreduce(tf.ones([1]), op=hvd.Adasum, process_set=three)
    finally:
        hvd.remove_process_set(three)


@scenario
def variables_get_the_values_of_the_root() -> None:
    variables = [tf.Variable([hvd.rank()]), tf.Variable(hvd.rank() == 2)]
    first, second = hvd.broadcast_(variables, 2, name="variables")
    assert first.numpy().tolist() == variables[0].numpy().tolist() == [2]
    assert second.numpy() == variables[1].numpy() == np.bool_(True)
    layer = tf.keras.layers.Dense(2)
    layer.build([None, 3])
    hvd.broadcast_variables([*layer.variables, variables[0]], 1, inplace=True)
    assert variables[0].numpy().tolist() == [2]
    kernels = hvd.allgather(layer.kernel[None])
    assert np.ptp(kernels, axis=0).max() == 0.0
    with pytest.raises(RuntimeError, match=r"no global variables: call hvd\.broadcast_variables"):
        hvd.broadcast_global_variables(0)


@scenario
def variables_of_a_graph_get_the_values_of_the_root() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [
            tf.compat.v1.get_variable(f"variable{kind}", initializer=[float(hvd.rank())], use_resource=kind)
            for kind in (False, True)
        ]
        results = hvd.broadcast_(made, 3)
        session.run(tf.compat.v1.global_variables_initializer())
        assert [each.tolist() for each in session.run(results)] == [[3.0], [3.0]]
        assert [each.tolist() for each in session.run(made)] == [[3.0], [3.0]]


@scenario
def objects_of_all_ranks_and_of_one() -> None:
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
    assert hvd.broadcast_object_fn(root_rank=2)([hvd.rank()]) == [2]
    assert hvd.allgather_object("x" * hvd.rank(), name="texts") == ["", "x", "xx", "xxx"]

    @tf.function
    def while_tracing() -> Any:
        return tf.constant(hvd.broadcast_object(hvd.rank() + 1))

    assert while_tracing().numpy() == 1

    class Unpicklable:
        def __reduce__(self) -> Any:
            raise ZeroDivisionError("not to be pickled")

    with pytest.raises(ZeroDivisionError if hvd.rank() == 0 else hvd.HorovodInternalError, match="not to be pickled"):
        hvd.broadcast_object(Unpicklable())


@scenario
def ranks_without_data_join() -> None:
    for in_graph in (False, True):
        join = tf.function(hvd.join) if in_graph else hvd.join
        for step in range(hvd.rank() + 1):
            # As many ranks as are not through give one each.
            total = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="step")
            average = hvd.allreduce(tf.fill([1], 4), name="integer")
            assert total.numpy().tolist() == [4.0 - step] * 2
            assert average.numpy().tolist() == [4 - step]
        last = join()
        assert last.dtype == tf.int32
        assert int(last) == 3


@scenario
def ranks_that_disagree_hear_it() -> None:
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"'allreduce\.odd'.*disagree on the shape: rank \d .*rank \d"
    ):
        hvd.allreduce(tf.ones([3 + hvd.rank() % 2]), name="odd")
    with pytest.raises(tf.errors.FailedPreconditionError, match="disagree"):
        hvd.broadcast(tf.ones([2]), hvd.rank())
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.allreduce(tf.ones([3 + hvd.rank() % 2]), op=hvd.Adasum)
    hvd.barrier()


@scenario
def without_a_job_calls_say_what_to_do() -> None:
    hvd.barrier()
    hvd.shutdown()
    try:
        assert not hvd.is_initialized()
        for call in (hvd.rank, lambda: hvd.allreduce(tf.ones([1])), hvd.rank_op, hvd.join, hvd.barrier):
            with pytest.raises(ValueError, match=r"call hvd.init\(\) first"):
                call()
        assert int(hvd.process_set_included_op()) == -1
        assert hvd.broadcast_variables([], 0) is None
    finally:
        hvd.init()


@scenario
def what_is_not_there_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"hvd\.elastic\.run is not there yet"):
        hvd.elastic.run  # noqa: B018
    assert not hasattr(hvd.elastic, "TensorFlowState")
    assert not hvd.mpi_enabled()
    assert hvd.gloo_enabled()
    assert not hvd.nccl_built()
    assert not hvd.gpu_available("tensorflow")
    assert set(hvd.__all__) <= set(dir(hvd)) | {"SyncBatchNormalization"}
