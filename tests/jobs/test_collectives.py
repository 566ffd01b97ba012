"""Every operation, form, dtype and operator against NumPy, on real ranks and servers.

Each rank knows what all ranks give, so it computes the expected result itself and fails if it gets another.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shoal
from shoal.config.settings import Limits
from shoal.ops import arrays, collectives, operations
from shoal.ops.operations import OPERATORS, chunk
from shoal.testing import run_ranks

# Ranks and servers; what the first ones leave out is in the slow ones.
JOBS = [(1, 0), (3, 2), *(pytest.param(*job, marks=pytest.mark.slow) for job in ((2, 0), (2, 1), (4, 0), (4, 3)))]
RING_JOBS = [(3, 1), *(pytest.param(*job, marks=pytest.mark.slow) for job in ((2, 0), (4, 0)))]
SMALLEST = Limits(segment=64, credit=64, eager=0, small=0)

# How a result is computed from the inputs of all members, in float64 or integers.
REFERENCE: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce,
    "mean": lambda inputs: np.add.reduce(inputs) / len(inputs),
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "product": np.multiply.reduce,
}


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def operators(dtype: str) -> Iterator[str]:
    for op in OPERATORS:
        if op not in ("sum", "mean") or dtype != "bool":
            yield op


def given(rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """What ``rank`` gives: small numbers, so that every sum and product is exact in every dtype."""
    generator = np.random.default_rng([rank, seed])
    return generator.integers(0, 3, shape).astype(numpy_dtype(dtype))


def expected(op: str, shape: tuple[int, ...], dtype: str, members: list[int], seed: int = 0) -> np.ndarray:
    wide = np.float64 if "float" in dtype else numpy_dtype(dtype)
    inputs = [given(rank, shape, dtype, seed).astype(wide) for rank in members]
    return np.asarray(REFERENCE[op](inputs)).astype(numpy_dtype(dtype))


def as_torch(x: np.ndarray) -> Any:
    import torch  # takes seconds, and most jobs here do without

    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def as_numpy(x: Any) -> np.ndarray:
    if str(x.dtype) == "torch.bfloat16":
        return arrays.source(x).elements.view(ml_dtypes.bfloat16).reshape(x.shape)
    return np.asarray(x)


LIBRARIES: list[Callable[[np.ndarray], Any]] = [np.copy, as_torch]


def libraries(first_case: bool) -> list[Callable[[np.ndarray], Any]]:
    """The operator and the root are nothing to the library: PyTorch needs to see one of them only."""
    return LIBRARIES if first_case else LIBRARIES[:1]


def forms(name: str, make: Callable[[], Any], *arguments: Any) -> Iterator[tuple[str, Any, Any]]:
    """The form's name, the array that was given and the one that came back, for each of the four forms."""
    x = make()
    yield name, x, getattr(shoal, name)(x, *arguments)
    x = make()
    yield f"{name}_", x, getattr(shoal, f"{name}_")(x, *arguments)
    x = make()
    yield f"{name}_async", x, getattr(shoal, f"{name}_async")(x, *arguments).wait()
    x = make()
    yield f"{name}_async_", x, getattr(shoal, f"{name}_async_")(x, *arguments).wait()


def check(what: Any, result: Any, want: np.ndarray) -> None:
    got = as_numpy(result)
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    assert np.array_equal(got, want), f"{what}: {got} instead of {want}"


def every_allreduce() -> None:
    members = list(range(shoal.size()))
    for dtype in arrays.DTYPES:
        for op in operators(dtype):
            for shape in [(), (0, 3), (7, 3), (40_000,)]:
                x = given(shoal.rank(), shape, dtype)
                want = expected(op, shape, dtype, members)
                for library in libraries(op == "max"):
                    for form, passed, result in forms("allreduce", lambda f=library, x=x: f(x), op):
                        check((form, dtype, op, shape), result, want)
                        assert (result is passed) == form.endswith("_")
                        if not form.endswith("_"):
                            check((form, "its input"), passed, x)


def every_reducescatter() -> None:
    members = list(range(shoal.size()))
    for dtype in arrays.DTYPES:
        for op in operators(dtype):
            for shape in [(1,), (7, 3), (10_001, 4)]:
                x = given(shoal.rank(), shape, dtype)
                begin, end = chunk(shape[0], shoal.size(), shoal.rank())
                want = expected(op, shape, dtype, members)[begin:end]
                for library in libraries(op == "max"):
                    for form, passed, result in forms("reducescatter", lambda f=library, x=x: f(x), op):
                        check((form, dtype, op, shape), result, want)
                        if form.endswith("_"):
                            check((form, "its rows"), passed[begin:end], want)
                        else:
                            check((form, "its input"), passed, x)


def every_broadcast() -> None:
    for dtype in arrays.DTYPES:
        for root in {0, shoal.size() - 1}:
            for shape in [(), (0,), (7, 3), (40_000,)]:
                x = given(shoal.rank(), shape, dtype)
                want = given(root, shape, dtype)
                for library in libraries(root == 0):
                    for form, passed, result in forms("broadcast", lambda f=library, x=x: f(x), root):
                        check((form, dtype, root, shape), result, want)
                        assert (result is passed) == form.endswith("_")
                        if not form.endswith("_"):
                            check((form, "its input"), passed, x)


def every_allgather() -> None:
    size, rank = shoal.size(), shoal.rank()
    for dtype in arrays.DTYPES:
        for rows in [lambda r: r, lambda r: 3, lambda r: 5000 if r == 0 else 0, lambda r: 4001 + r]:
            blocks = [given(r, (rows(r), 4), dtype) for r in range(size)]
            want = np.concatenate(blocks)
            for library in LIBRARIES:
                check(("allgather", dtype), shoal.allgather(library(blocks[rank])), want)
                check(("allgather_async", dtype), shoal.allgather_async(library(blocks[rank])).wait(), want)
        for rows_each in [0, 2, 5000]:
            blocks = [given(r, (rows_each, 4), dtype) for r in range(size)]
            want = np.concatenate(blocks)
            for library in LIBRARIES:
                x = np.zeros((rows_each * size, 4), numpy_dtype(dtype))
                x[rank * rows_each : (rank + 1) * rows_each] = blocks[rank]
                for form in (shoal.allgather_, lambda x: shoal.allgather_async_(x).wait()):
                    passed = library(x)
                    assert form(passed) is passed
                    check(("allgather_", dtype), passed, want)


def every_alltoall() -> None:
    size, rank = shoal.size(), shoal.rank()
    for dtype in arrays.DTYPES:
        for rows in [lambda a, b: a + 2 * b, lambda a, b: 3000 * ((a + b) % 2), lambda a, b: a + b]:
            table = [[given(a, (rows(a, b), 2), dtype, seed=b) for b in range(size)] for a in range(size)]
            x = np.concatenate(table[rank])
            splits = [rows(rank, b) for b in range(size)]
            want = np.concatenate([table[a][rank] for a in range(size)])
            for library in LIBRARIES:
                check(("alltoall", dtype), shoal.alltoall(library(x), splits), want)
                handle = shoal.alltoall_async(library(x), splits)
                check(("alltoall_async", dtype), handle.wait(), want)
                assert handle.splits == tuple(rows(a, rank) for a in range(size))
        for rows_each in [0, 2, 3000]:
            table = [[given(a, (rows_each, 2), dtype, seed=b) for b in range(size)] for a in range(size)]
            x = np.concatenate(table[rank])
            want = np.concatenate([table[a][rank] for a in range(size)])
            for library in LIBRARIES:
                for form, passed, result in forms("alltoall", lambda f=library, x=x: f(x)):
                    check((form, dtype), result, want)
                    assert (result is passed) == form.endswith("_")


def everything() -> None:
    shoal.init()
    for check_operation in (every_allreduce, every_reducescatter, every_broadcast, every_allgather, every_alltoall):
        check_operation()
    shoal.shutdown()


@pytest.mark.parametrize(("ranks", "servers"), JOBS)
def test_every_operation_gives_what_numpy_gives(ranks: int, servers: int) -> None:
    run_ranks(everything, ranks, servers=servers, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_every_operation_gives_the_same_over_several_connections(threads: str) -> None:
    environment = {"SHOAL_SOCKETS": "3", "SHOAL_THREADS": threads}
    run_ranks(everything, 3, servers=2, environment=environment, timeout=120)


def only_allreduce() -> None:
    shoal.init()
    every_allreduce()
    shoal.shutdown()


@pytest.mark.parametrize(("ranks", "servers"), RING_JOBS)
def test_the_ring_gives_what_numpy_gives(ranks: int, servers: int) -> None:
    run_ranks(only_allreduce, ranks, servers=servers, environment={"SHOAL_ALGORITHM": "ring"}, timeout=120)


def arrays_in_place_that_are_not_contiguous() -> None:
    shoal.init()
    size = shoal.size()
    base = np.arange(20_000.0).reshape(100, 200) * (shoal.rank() + 1)
    want = np.arange(20_000.0).reshape(100, 200) * sum(range(1, size + 1))
    x = base.copy()
    assert np.array_equal(shoal.allreduce_(x.T, op="sum"), want.T)
    assert np.array_equal(x, want)
    tensor = as_torch(base)
    shoal.allreduce_(tensor[:, ::2], op="sum")
    assert np.array_equal(tensor[:, ::2].numpy(), want[:, ::2])
    assert np.array_equal(tensor[:, 1::2].numpy(), base[:, 1::2])
    shoal.shutdown()


def test_arrays_that_are_not_contiguous_are_worked_on_in_place() -> None:
    run_ranks(arrays_in_place_that_are_not_contiguous, 3, servers=1, timeout=60)


def one_comes_late() -> None:
    shoal.init()
    if shoal.rank() == 1:
        shoal.broadcast(np.zeros(1), root=0, name="first")
        shoal.barrier(name="meeting")
    else:
        handle = shoal.barrier_async(name="meeting")
        assert not handle.done()
        shoal.broadcast(np.zeros(1), root=0, name="first")
        handle.wait()
    shoal.shutdown()


def test_a_barrier_waits_for_every_member() -> None:
    run_ranks(one_comes_late, 2, servers=1, timeout=60)


def rows_of_each(group: shoal.Group) -> list[int]:
    """Of 200 rows, as a reduce-scatter cuts them."""
    return [200 // group.size + (place < 200 % group.size) for place in range(group.size)]


def overlapping_groups() -> None:
    shoal.init()
    rank = shoal.rank()
    groups = [shoal.Group(ranks) for ranks in ([0, 1, 2], [3, 2, 1], [0, 3], [2], [3, 1, 0, 2])]
    groups.append(shoal.Group([0, 3], name="again"))
    mine = [group for group in groups if rank in group.ranks]
    random.Random(rank).shuffle(mine)
    handles = []
    for repeat in range(5):
        for group in mine:
            x = given(rank, (200, 30), "float32", seed=repeat)
            handles.append((group, repeat, shoal.allreduce_async(x, op="sum", group=group)))
            handles.append((group, repeat, shoal.allgather_async(x, group=group)))
            root = group.ranks[-1]
            handles.append((group, repeat, shoal.broadcast_async(x, root, group=group)))
            handles.append((group, repeat, shoal.reducescatter_async(x, op="sum", group=group)))
            handles.append((group, repeat, shoal.alltoall_async(x, rows_of_each(group), group=group)))
    for index, (group, repeat, handle) in enumerate(handles):
        blocks = [given(r, (200, 30), "float32", seed=repeat) for r in group.ranks]
        ends = np.cumsum(rows_of_each(group))
        own = slice(ends[group.rank] - rows_of_each(group)[group.rank], ends[group.rank])
        received = np.concatenate([block[own] for block in blocks])
        want = [sum(blocks), np.concatenate(blocks), blocks[-1], sum(blocks)[own], received][index % 5]
        check((group, repeat), handle.wait(), want)
    for group in groups:
        assert group.size == len(group.ranks)
        assert group.rank == (group.ranks.index(rank) if rank in group.ranks else None)
        if rank not in group.ranks:
            with pytest.raises(ValueError, match=f"rank {rank} is not a member of Group"):
                shoal.allreduce(np.zeros(1), group=group)
    shoal.shutdown()


def test_groups_that_overlap_do_not_disturb_each_other() -> None:
    run_ranks(overlapping_groups, 4, servers=2, timeout=60)


def four_hundred_in_any_order(limits: Limits) -> None:
    shoal.init(_limits=limits)
    rank, size = shoal.rank(), shoal.size()
    shapes = [(1 + 13 * index % 900,) for index in range(400)]
    order = list(range(400))
    random.Random(rank).shuffle(order)
    handles: dict[int, shoal.Handle] = {}
    for index in order:
        x = given(rank, shapes[index], "float32", seed=index)
        if index % 8 == 7:
            handles[index] = shoal.allgather_async(x, name=f"tensor {index}")
        else:
            handles[index] = shoal.allreduce_async(x, op="sum", name=f"tensor {index}")
    random.Random(-rank).shuffle(order)
    for index in order:
        blocks = [given(r, shapes[index], "float32", seed=index) for r in range(size)]
        want = (
            np.concatenate(blocks)
            if index % 8 == 7
            else expected("sum", shapes[index], "float32", list(range(size)), index)
        )
        check(index, handles[index].wait(), want)
    shoal.shutdown()


@pytest.mark.parametrize("limits", [Limits(), SMALLEST], ids=["default", "smallest"])
@pytest.mark.parametrize(("ranks", "servers"), [pytest.param(3, 0, marks=pytest.mark.slow), (4, 2)])
def test_four_hundred_open_operations_in_any_order_are_right(ranks: int, servers: int, limits: Limits) -> None:
    run_ranks(four_hundred_in_any_order, ranks, limits, servers=servers, timeout=120)


def same_names_again_and_again() -> None:
    shoal.init()
    rank = shoal.rank()
    for repeat in range(30):
        first = shoal.allreduce_async(np.float64(rank + repeat), op="max", name="loss")
        second = shoal.allreduce_async(np.float64(rank - repeat), op="min", name="loss")
        assert second.wait() == -repeat
        assert first.wait() == shoal.size() - 1 + repeat
    shoal.shutdown()


def test_a_name_may_be_used_again() -> None:
    run_ranks(same_names_again_and_again, 3, servers=0, timeout=60)


def bits_of_a_sum() -> bytes:
    shoal.init()
    x = np.random.default_rng(shoal.rank()).standard_normal(200_000).astype(np.float32)
    result = shoal.allreduce(x)
    shoal.shutdown()
    return result.tobytes()


def a_result_that_cannot_be_taken() -> list[str]:
    """What each wait for it says."""
    shoal.init()

    def take() -> None:
        raise tries.pop()

    tries: list[BaseException] = [TypeError("this has no meaning"), KeyboardInterrupt()]
    array = np.ones(3)
    handle = collectives.submit(
        "allreduce_", None, None, lambda group: operations.allreduce(group, array, "sum", in_place=True).then(take)
    )
    heard = []
    for _ in range(3):
        try:
            handle.wait()
        except (KeyboardInterrupt, Exception) as error:
            heard.append(f"{type(error).__name__}: {error}")
    shoal.shutdown()
    return heard


def test_every_wait_says_the_same_of_a_result_that_cannot_be_taken() -> None:
    said = ["KeyboardInterrupt: ", *["TypeError: this has no meaning"] * 2]
    assert run_ranks(a_result_that_cannot_be_taken, 2) == [said, said]


def test_the_same_job_gives_the_same_bits_whatever_the_servers() -> None:
    results = {bits for servers in (0, 1, 3, 0) for bits in run_ranks(bits_of_a_sum, 4, servers=servers, timeout=60)}
    for threads in ("1", "2"):
        environment = {"SHOAL_SOCKETS": "2", "SHOAL_THREADS": threads}
        results.update(run_ranks(bits_of_a_sum, 4, servers=2, environment=environment, timeout=60))
    assert len(results) == 1


def test_the_ring_repeats_to_the_bit_with_itself() -> None:
    ring = {"SHOAL_ALGORITHM": "ring"}
    assert len({bits for _ in range(2) for bits in run_ranks(bits_of_a_sum, 4, environment=ring, timeout=60)}) == 1
