"""No number bounds what is open at once, nor groups, nor names: their memory does, and says so."""

import time
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.job.runtime import current
from shoal.testing import run_ranks

# On one machine, which shares memory; between nodes; with a dedicated server as well.
PLACES = [{"nodes": 1}, {"nodes": 2}, {"nodes": 2, "servers": 1}]


def in_opposite_orders(count: int) -> float:
    """The sum of the results of so many operations that are all open before any can be done."""
    shoal.init()
    arrays = [np.full(1, index, "f8") for index in range(count)]
    order = range(count) if shoal.rank() == 0 else reversed(range(count))
    handles = {i: shoal.allreduce_async_(arrays[i], op="sum", name=f"gradient {i}") for i in order}
    for index, handle in handles.items():
        assert handle.wait()[0] == 2 * index
    shoal.shutdown()
    return float(sum(array[0] for array in arrays))


@pytest.mark.parametrize("places", [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.slow), PLACES[2]], ids=str)
def test_10000_operations_in_opposite_orders_on_two_ranks(places: dict[str, int]) -> None:
    count = 10_000
    assert run_ranks(in_opposite_orders, 2, count, **places) == [count * (count - 1)] * 2


def with_many_names(count: int) -> int:
    shoal.init()
    handles = []
    for index in range(count):
        handles.append(shoal.allreduce_async_(np.ones(1, "f4"), op="sum", name=f"name {index}"))
        if len(handles) == 1000:
            assert all(handle.wait()[0] == 2 for handle in handles)
            handles.clear()
    shoal.shutdown()
    return count


@pytest.mark.slow
@pytest.mark.parametrize("places", PLACES[:2], ids=str)
def test_70000_names(places: dict[str, int]) -> None:
    assert run_ranks(with_many_names, 2, 70_000, **places) == [70_000] * 2


def in_many_groups(count: int) -> int:
    """Bytes that the network took for one all-reduce in each of so many groups."""
    shoal.init()
    shoal.barrier()
    before = current().engine.statistics()["bytes_sent"]
    mine = [0, 1] if shoal.rank() < 2 else [2, 3]
    groups = [shoal.Group(mine, name=f"group {index}") for index in range(count)]
    for index, group in enumerate(groups):
        result = shoal.allreduce(np.full(20_000, shoal.rank() + index, "f4"), op="sum", group=group)
        assert (result == sum(mine) + 2 * index).all()
    sent = current().engine.statistics()["bytes_sent"] - before
    shoal.barrier()
    shoal.shutdown()
    return int(sent)


@pytest.mark.parametrize("servers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_200th_group_of_a_node_goes_the_way_of_the_first(servers: int) -> None:
    for sent in run_ranks(in_many_groups, 4, 100, nodes=1 + servers, servers=servers):
        assert sent < 10_000


def beyond_what_tables_may_take(told: Path) -> list[str]:
    """Rank 0 opens operations until their memory is too much: what it and rank 1 hear of the last. Then all works again."""
    shoal.init()

    def submit(index: int) -> shoal.Handle:
        return shoal.allreduce_async_(np.ones(1, "f4"), op="sum", name=f"{'x' * 900}{index}")

    handles = []
    if shoal.rank() == 0:
        while not handles or not handles[-1].done():
            handles.append(submit(len(handles)))
        told.write_text(f"{len(handles)}\n")
    else:
        while not told.exists() or not told.read_text().endswith("\n"):
            time.sleep(0.01)
        handles = [submit(index) for index in range(int(told.read_text()))]
    errors = []
    for handle in handles:
        try:
            assert handle.wait()[0] == 2
        except shoal.ShoalError as error:
            errors.append(str(error))
    assert shoal.allreduce(np.ones(1), op="sum")[0] == 2
    shoal.shutdown()
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_beyond_the_memory_of_open_operations_is_an_error_on_all_ranks_and_the_job_goes_on(
    places: dict[str, int], tmp_path: Path
) -> None:
    said = run_ranks(beyond_what_tables_may_take, 2, tmp_path / "told", timeout=180, **places)
    # Rank 0 may have opened some more before it was told of the first.
    assert len(said[0]) == len(said[1]) > 0
    for error in [*said[0], *said[1]]:
        assert "operations that are open take all the memory that they may on rank 0" in error
        assert "256 MiB (open_bytes)" in error
        assert "wait for some of them" in error
