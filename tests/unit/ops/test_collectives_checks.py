"""Wrong arguments are refused on the rank that makes them, with the operation, the name and what to do. One rank alone."""

import itertools
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import shoal
from shoal.ops.operations import chunk


@pytest.fixture
def job() -> Iterator[None]:
    shoal.init()
    yield
    shoal.shutdown()


def test_nothing_works_before_init() -> None:
    assert not shoal.is_initialized()
    for call in (shoal.rank, shoal.size, shoal.local_rank, shoal.local_size, lambda: shoal.allreduce(1.0)):
        with pytest.raises(shoal.ShoalError, match=r"call shoal\.init\(\) first"):
            call()
    with pytest.raises(shoal.ShoalError, match="init"):
        shoal.Group([0])
    shoal.shutdown()


@pytest.mark.usefixtures("job")
def test_one_rank_alone_is_a_job() -> None:
    assert shoal.is_initialized()
    assert (shoal.rank(), shoal.size(), shoal.local_rank(), shoal.local_size()) == (0, 1, 0, 1)
    x = np.arange(6.0).reshape(3, 2)
    for op in ("sum", "mean", "min", "max", "product"):
        assert np.array_equal(shoal.allreduce(x, op=op), x)
        assert np.array_equal(shoal.reducescatter(x, op=op), x)
    assert np.array_equal(shoal.broadcast(x), x)
    assert np.array_equal(shoal.allgather(x), x)
    assert np.array_equal(shoal.alltoall(x, splits=[3]), x)
    assert np.array_equal(shoal.alltoall_(x), x)
    assert shoal.barrier() is None
    assert shoal.allreduce(2.5) == 2.5


@pytest.mark.usefixtures("job")
def test_init_again_does_nothing_and_init_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shoal.init()
    monkeypatch.setenv("SHOAL_TIMEOUT", "77")
    with pytest.raises(shoal.ShoalError, match=r"shoal\.shutdown\(\) before"):
        shoal.init()
    assert shoal.is_initialized()


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: shoal.allreduce(1.0, op="average"), ValueError, "op must be one of sum, mean"),
        (lambda: shoal.allreduce([True, False]), TypeError, "bool has no mean"),
        (lambda: shoal.allreduce(scipy.sparse.eye(2)), TypeError, r"is sparse.*x\.toarray\(\)"),
        (lambda: shoal.allreduce(True, op="sum"), TypeError, "bool has no sum"),
        (lambda: shoal.allreduce("text"), TypeError, "not an array"),
        (lambda: shoal.allreduce_([1.0]), TypeError, "cannot be written to"),
        (lambda: shoal.broadcast(1.0, root=1), ValueError, "root 1 is not a member"),
        (lambda: shoal.reducescatter(1.0), ValueError, "at least one dimension"),
        (lambda: shoal.allgather(1.0), ValueError, "at least one dimension"),
        (lambda: shoal.allgather(np.zeros((3, 0))), ValueError, "rows without elements"),
        (lambda: shoal.alltoall([1.0, 2.0], splits=[1]), ValueError, r"add up to the first dimension, 2; got \[1\]"),
        (lambda: shoal.alltoall([1.0], splits=[2, -1]), ValueError, "splits must be 1 numbers"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_made(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()  # type: ignore[operator]
    assert " on rank 0 (" in str(caught.value)
    assert shoal.allreduce(1.0) == 1.0


@pytest.mark.usefixtures("job")
def test_a_message_names_the_tensor() -> None:
    with pytest.raises(TypeError, match=r"allreduce_ of 'layer1\.weight' on rank 0 \("):
        shoal.allreduce_(1.0, name="layer1.weight")


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("name", ["", "#1", "é" * 513])
def test_names_that_cannot_be_matched_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        shoal.allreduce(1.0, name=name)
    assert shoal.allreduce(1.0, name="é" * 512) == 1.0


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("ranks", [[], [1], [-1], [0, 0]])
def test_groups_of_other_ranks_are_refused(ranks: list[int]) -> None:
    with pytest.raises(ValueError, match="rank"):
        shoal.Group(ranks)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ranks": 3}, TypeError, r"ranks must be the numbers of the members, got 3, of type int, .*pass a list"),
        ({"ranks": ["0"]}, TypeError, r"ranks must be the numbers of the members, got \['0'\], of type list"),
        ({"ranks": [0], "name": 5}, TypeError, r"name must be a text, got 5, of type int, .*leave it out"),
        ({"ranks": [0], "timeout": "60"}, TypeError, r"timeout must be a number of seconds, got '60', of type str"),
        ({"ranks": [0], "timeout": timedelta(1)}, TypeError, r"timeout must be a number of seconds, got .*timedelta"),
        ({"ranks": [0], "timeout": True}, TypeError, r"timeout must be a number of seconds, got True"),
        ({"ranks": [0], "timeout": 0}, ValueError, r"timeout must be above 0 seconds, got 0"),
        ({"ranks": [0], "timeout": float("nan")}, ValueError, r"timeout must be above 0 seconds, got nan"),
    ],
)
def test_arguments_of_a_group_are_refused_by_name(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        shoal.Group(**arguments)
    assert " on rank 0 (" in str(caught.value)


@pytest.mark.usefixtures("job")
def test_numbers_of_numpy_make_a_group_too() -> None:
    group = shoal.Group(np.arange(1), timeout=np.float32(5))
    assert (group.ranks, group.timeout) == ((0,), 5)
    assert shoal.allreduce(3.0, group=group) == 3.0


@pytest.mark.usefixtures("job")
def test_a_group_ends_with_its_job() -> None:
    group = shoal.Group([0], name="alone", timeout=5)
    assert (group.ranks, group.size, group.rank, group.timeout) == ((0,), 1, 0, 5)
    assert shoal.allreduce(3.0, group=group) == 3.0
    shoal.shutdown()
    shoal.init()
    with pytest.raises(shoal.ShoalError, match="make it again"):
        shoal.allreduce(3.0, group=group)


@pytest.mark.usefixtures("job")
def test_handles_may_be_waited_for_again_and_after_shutdown() -> None:
    handle = shoal.allreduce_async(np.ones(3), name="x")
    assert handle.wait() is handle.wait()
    late = shoal.allreduce_async(np.ones(3), name="y")
    shoal.shutdown()
    assert late.done()
    assert late.wait().tolist() == [1.0, 1.0, 1.0]
    assert "done" in repr(late)


@pytest.mark.usefixtures("job")
def test_a_forked_child_is_not_a_rank() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            shoal.allreduce(1.0)
        except shoal.ShoalError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    message = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(child, 0)
    assert "forked from one that uses Shoal" in message
    assert shoal.allreduce(1.0) == 1.0


@pytest.mark.parametrize(("rows", "members"), [(0, 3), (2, 3), (7, 3), (9, 3), (10, 1)])
def test_chunks_cover_the_rows_in_order_and_differ_by_one_at_most(rows: int, members: int) -> None:
    chunks = [chunk(rows, members, index) for index in range(members)]
    assert chunks[0][0] == 0
    assert chunks[-1][1] == rows
    assert all(before[1] == after[0] for before, after in itertools.pairwise(chunks))
    sizes = [end - begin for begin, end in chunks]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
