"""allreduce(op="adasum") of real ranks, beside the paper's formula in NumPy."""

import os

import numpy as np
import numpy.typing as npt
import pytest
import torch

import shoal
from shoal.job.runtime import current
from shoal.testing import Cluster, run_ranks

Vector = npt.NDArray[np.float64]

SIZES = [0, 1, 2, 3, 5, 17, 1_000, 100_003]
MEGABYTES = 8


def of_two(first: Vector, second: Vector) -> Vector:
    both, of_first, of_second = first @ second, first @ first, second @ second
    return (1 - both / (2 * of_first or 1)) * first + (1 - both / (2 * of_second or 1)) * second


def reference(vectors: list[Vector]) -> Vector:
    """In pairs of neighbours, then pairs of pairs."""
    while len(vectors) > 1:
        vectors = [of_two(first, second) for first, second in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def vector(rank: int, size: int) -> Vector:
    return np.random.default_rng([rank, size]).normal(size=size)


def test_it_is_the_papers_formula() -> None:
    for found in run_ranks(reduced, 4, nodes=2, servers=1):
        for size, of_size in zip(SIZES, found, strict=True):
            for dtype, result in of_size.items():
                given = [as_dtype(vector(rank, size), dtype).double().numpy() for rank in range(4)]
                exact = 1e-12 if dtype == torch.float64 else torch.finfo(dtype).eps
                np.testing.assert_allclose(result.double().numpy(), reference(given), rtol=4 * exact, atol=8 * exact)


def as_dtype(values: Vector, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(values).to(dtype)


def reduced() -> list[dict[torch.dtype, torch.Tensor]]:
    shoal.init()
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    return [
        {dtype: shoal.allreduce(as_dtype(vector(shoal.rank(), size), dtype), "adasum") for dtype in dtypes}
        for size in SIZES
    ]


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (2, 1), pytest.param(8, 4, marks=pytest.mark.slow)])
def test_all_members_have_the_same_bits_of_many_calls_in_any_order(ranks: int, nodes: int) -> None:
    found = run_ranks(in_any_order, ranks, nodes=nodes)
    for number, result in enumerate(found[0]):
        expected = reference([vector(rank, 100 + number).astype(np.float32).astype(float) for rank in range(ranks)])
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert all(each == found[0] for each in found)


def in_any_order() -> list[list[float]]:
    """40 with names, in an order of each rank's, and 40 without."""
    shoal.init()
    rank, handles = shoal.rank(), {}
    for number in np.random.default_rng(rank).permutation(40):
        x = vector(rank, 100 + number).astype(np.float32)
        handles[int(number)] = shoal.allreduce_async(x, "adasum", f"gradient {number}")
    for number in range(40, 80):
        x = torch.from_numpy(vector(rank, 100 + number).astype(np.float32))
        handles[number] = shoal.allreduce_async_(x, "adasum")
    return [handles[number].wait().tolist() for number in range(80)]


def test_arrays_in_place_and_of_any_layout() -> None:
    for found in run_ranks(in_place, 2):
        assert found == [[[1.0, 1.0], [1.0, 1.0]], True, [[2.0, 0.0], [2.0, 0.0]]]


def in_place() -> list[object]:
    """Parallel arrays give their mean, orthogonal ones their sum."""
    shoal.init()
    columns = torch.ones(2, 2).t()
    same = shoal.allreduce_(columns, "adasum") is columns
    spread = np.zeros((4, 2), np.float32)[::2]
    spread[shoal.rank(), 0] = 2
    return [columns.tolist(), same, shoal.allreduce(spread, "adasum").tolist()]


def test_what_is_wrong_is_an_error_on_all_members() -> None:
    for rank, (shapes, integers, operators, three, after) in enumerate(run_ranks(wrong, 4, nodes=2)):
        assert shapes.startswith("Mismatch"), shapes
        assert "adasum is for floating arrays" in integers
        assert "Mismatch" in operators
        assert "called allreduce sum" in operators
        assert rank == 3 or three.startswith("ValueError: adasum on rank")
        assert after == "[1.0, 1.0]"


def outcome(x: object, op: str = "adasum", group: shoal.Group | None = None) -> str:
    try:
        return str(shoal.allreduce(x, op, None, group).tolist())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def wrong() -> list[str]:
    shoal.init()
    rank = shoal.rank()
    three = shoal.Group([0, 1, 2]) if rank < 3 else None
    return [
        outcome(np.ones(3 if rank else 4)),
        outcome(np.ones(3, np.int32) if rank == 2 else np.ones(3)),
        outcome(np.ones(3), "adasum" if rank else "sum"),
        outcome(np.ones(3), group=three) if three else "",
        outcome(np.ones(2)),
    ]


def test_the_loss_of_a_member_in_the_midst_is_an_error_on_all_others() -> None:
    with Cluster(4, nodes=2) as cluster:
        outcomes = cluster.start(one_ends).wait(60)
    for each in outcomes[:3]:
        assert "PeerLost" in each.stdout, each.describe()


def one_ends() -> None:
    shoal.init()
    handles = [shoal.allreduce_async(np.ones(200_000, np.float32), "adasum", f"{i}") for i in range(8)]
    if shoal.rank() == 3:
        handles[2].wait()
        os._exit(3)
    for _ in range(200):
        handles.append(shoal.allreduce_async(np.ones(200_000, np.float32), "adasum"))
    try:
        for handle in handles:
            handle.wait()
    except shoal.ShoalError as error:
        print(type(error).__name__, flush=True)
    os._exit(0)


def test_groups_of_the_same_ranks_do_not_meet() -> None:
    for of_first, of_second, of_all in run_ranks(in_two_groups, 2):
        assert (of_first, of_second, of_all) == ([1.0], [100.0], [7.0])


def in_two_groups() -> list[list[float]]:
    """Which ranks call first in another order."""
    shoal.init()
    groups = [shoal.Group([0, 1]), shoal.Group([0, 1]), None]
    order = [0, 1, 2] if shoal.rank() == 0 else [2, 1, 0]
    handles = {
        number: shoal.allreduce_async(np.full(1, (1.0, 100.0, 7.0)[number]), "adasum", None, groups[number])
        for number in order
    }
    return [handles[number].wait().tolist() for number in range(3)]


def test_leaving_the_job_waits_for_what_is_under_way() -> None:
    with Cluster(2, nodes=2) as cluster:
        outcomes = cluster.start(leaves_early).wait(60)
    for each in outcomes:
        assert each.exit_code == 0, each.describe()
        assert each.stdout == "[1.5, 1.5]\n" * 3, each.describe()


def leaves_early() -> None:
    """Rank 0 leaves by shutdown, then by its end."""
    shoal.init()
    x = np.full(300_000, shoal.rank() + 1.0, np.float32)
    handles = [shoal.allreduce_async(x, "adasum") for _ in range(3)]
    if shoal.rank() == 0:
        shoal.shutdown()
    for handle in handles:
        print(handle.wait()[:2].tolist(), flush=True)


def test_many_calls_in_one_queue_all_hear_of_a_loss() -> None:
    with Cluster(2, nodes=2) as cluster:
        outcomes = cluster.start(one_of_two_ends).wait(60)
    assert outcomes[0].stdout == "600 errors\n", outcomes[0].describe()


def one_of_two_ends() -> None:
    shoal.init()
    shoal.allreduce(np.ones(10), "adasum")
    if shoal.rank() == 1:
        os._exit(3)
    handles = [shoal.allreduce_async(np.ones(1_000), "adasum") for _ in range(600)]
    print(sum(is_lost(handle) for handle in handles), "errors", flush=True)
    os._exit(0)


def is_lost(handle: shoal.Handle) -> bool:
    try:
        handle.wait(20)
    except shoal.Timeout:
        return False
    except shoal.ShoalError:
        return True
    return False


def test_memory_that_is_taken_away_meanwhile_is_not_written_to() -> None:
    said, others = run_ranks(resized, 2)
    assert "no place for the result" in said
    assert others == "[1.5, 1.5]"


def resized() -> str:
    shoal.init()
    tensor = torch.full((200_000,), shoal.rank() + 1.0)
    handle = shoal.allreduce_async_(tensor, "adasum")
    if shoal.rank() == 0:
        tensor.untyped_storage().resize_(0)
    try:
        return str(handle.wait()[:2].tolist())
    except shoal.ShoalError as error:
        return str(error)


def test_an_array_far_smaller_than_the_other_makes_no_infinities() -> None:
    """What has underflowed is multiplied by more than float32 can hold."""
    small, large = np.array([1e-42, 0], np.float32), np.array([1e-3, 1e-3], np.float32)
    for found in run_ranks(far_apart, 2):
        np.testing.assert_allclose(found, reference([small.astype(float), large.astype(float)]), rtol=1e-5)


def far_apart() -> list[float]:
    shoal.init()
    x = np.array([1e-3, 1e-3] if shoal.rank() else [1e-42, 0], np.float32)
    found: list[float] = shoal.allreduce(x, "adasum").tolist()
    return found


@pytest.mark.parametrize(("dtype", "there", "back"), [(torch.float32, 1, 1), (torch.bfloat16, 2, 1)])
def test_a_rank_sends_its_array_less_than_twice(dtype: torch.dtype, there: int, back: int) -> None:
    """(n - 1) / n of it each way, and little else; on the way there in float32."""
    least = (there + back) * 3 / 4 * MEGABYTES * 1e6
    for sent in run_ranks(sent_bytes, 4, dtype, nodes=4):
        assert least <= sent <= 1.01 * least


def sent_bytes(dtype: torch.dtype) -> int:
    shoal.init()
    x = torch.ones(MEGABYTES * 1_000_000 // dtype.itemsize, dtype=dtype)
    shoal.allreduce(x[:4], "adasum")
    shoal.barrier()
    before = current().engine.statistics()["bytes_sent"]
    shoal.allreduce_(x, "adasum")
    sent: int = current().engine.statistics()["bytes_sent"] - before
    return sent


def test_it_trains_where_the_sum_diverges() -> None:
    """Least squares with a learning rate that is right for one rank: that of four ranks' sums is four times too large."""
    for of_sum, of_adasum, at_first in run_ranks(trained, 4, nodes=2):
        assert of_sum > 1e3 * at_first
        assert of_adasum < 1e-2 * at_first


def trained() -> list[float]:
    shoal.init()
    solution = np.random.default_rng(7).normal(size=16)
    losses = []
    for op in ("sum", "adasum"):
        batches, weights = np.random.default_rng(shoal.rank()), np.zeros(16)
        for _ in range(60):
            inputs = batches.normal(size=(64, 16))
            gradient = inputs.T @ (inputs @ (weights - solution)) / 64
            weights -= 0.7 * shoal.allreduce(gradient, op)
        losses.append(float(np.square(weights - solution).sum()))
    return [*losses, float(np.square(solution).sum())]
