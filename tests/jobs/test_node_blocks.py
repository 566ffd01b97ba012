"""All-gathers and reduce-scatters of all ranks where nodes have several: from leader to leader, each byte once."""

import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.job.runtime import current
from shoal.testing import run_ranks

MEGABYTES = 4
ELEMENTS = MEGABYTES * 250_000


def bytes_that_took_the_network(servers: int) -> dict[str, tuple[int, int]]:
    """Sent and received by this process: for an all-gather of MEGABYTES a rank, and a reduce-scatter of as much."""
    shoal.init()
    operations: dict[str, Callable[[], object]] = {
        "all-gather": lambda: shoal.allgather(np.ones(ELEMENTS, np.float32)),
        "reduce-scatter": lambda: shoal.reducescatter(np.ones(ELEMENTS, np.float32), op="sum"),
    }
    moved = {}
    for name, operation in operations.items():
        shoal.barrier()
        before = current().engine.statistics()
        operation()
        after = current().engine.statistics()
        moved[name] = (after["bytes_sent"] - before["bytes_sent"], after["bytes_received"] - before["bytes_received"])
    shoal.barrier()
    shoal.shutdown()
    return moved


# Two nodes of two ranks: a node's blocks go to the other, or the other's half of the node's sum.
def test_every_byte_crosses_once_from_leader_to_leader() -> None:
    moved = run_ranks(bytes_that_took_the_network, 4, 0, nodes=2, timeout=60)
    for leader in (0, 2):
        for name, megabytes in (("all-gather", 2 * MEGABYTES), ("reduce-scatter", MEGABYTES / 2)):
            assert moved[leader][name][0] == pytest.approx(megabytes * 1e6, rel=0.03), (leader, name)
            assert moved[leader][name][1] == pytest.approx(megabytes * 1e6, rel=0.03), (leader, name)
    for other in (1, 3):
        assert max(max(pair) for pair in moved[other].values()) < 10_000, moved[other]


def blocks_of_all_kinds(order: list[int]) -> None:
    shoal.init()
    group = shoal.Group(order)
    index, size = order.index(shoal.rank()), len(order)
    generator = np.random.default_rng(3)
    for rows in (0, 1, 5, 1000, 70_001):
        counts = [0 if member == 1 else rows * (member + 1) % (rows + 3) for member in range(size)]
        for equal in (True, False):
            inputs = [generator.standard_normal((rows if equal else count, 3)) for count in counts]
            for turn in range(2):
                gathered = shoal.allgather(inputs[index], group=group, name=f"blocks {rows} {equal} {turn}")
                assert np.array_equal(gathered, np.concatenate(inputs))
        arrays = generator.integers(-1000, 1000, (size, rows, 3)).astype(np.int64)
        summed = shoal.reducescatter(arrays[index], op="sum", group=group)
        assert np.array_equal(summed, np.array_split(arrays.sum(axis=0), size)[index]), (rows, index)
    many = [
        shoal.allgather_async(np.full(9_000 + one, shoal.rank()), group=group, name=f"many {one}") for one in range(20)
    ]
    for one, handle in enumerate(reversed(many)):
        assert np.array_equal(handle.wait(), np.repeat(order, 9_000 + 19 - one))
    shoal.shutdown()


@pytest.mark.parametrize(
    ("order", "nodes", "servers"),
    [
        pytest.param([0, 1, 2, 3], 2, 0, id="as they lie"),
        pytest.param([2, 0, 3, 1], 2, 1, id="in turns"),
        pytest.param([0, 1, 2], 2, 1, id="uneven"),
        pytest.param([4, 0, 2, 1, 3, 5, 6], 3, 0, id="uneven and in turns"),
    ],
)
def test_blocks_are_those_of_the_group_whatever_its_order_and_nodes(order: list[int], nodes: int, servers: int) -> None:
    run_ranks(blocks_of_all_kinds, len(order), order, nodes=nodes, servers=servers, timeout=120)


def bits_of_scattered_means() -> bytes:
    shoal.init()
    values = np.random.default_rng(shoal.rank()).uniform(-1, 1, 50_000)
    bits = b"".join(
        shoal.reducescatter(values.astype(dtype), op="mean").tobytes() for dtype in (np.float16, np.float32)
    )
    whole = np.array_split(shoal.allreduce(values.astype(np.float32), op="mean"), shoal.size())[shoal.rank()]
    assert bits[-whole.nbytes :] == whole.tobytes()
    shoal.shutdown()
    return bits


def test_a_scattered_mean_has_the_same_bits_on_every_run_and_those_of_the_whole() -> None:
    found = [run_ranks(bits_of_scattered_means, 4, nodes=2, servers=servers, timeout=60) for servers in (0, 1, 2)]
    assert found[0] == found[1] == found[2]


def one_never_calls(rows: int) -> list[str]:
    shoal.init()
    texts = []
    for name, call in (
        ("blocks", lambda: shoal.allgather(np.ones(rows), name="blocks")),
        ("rows", lambda: shoal.reducescatter(np.ones(rows), name="rows")),
    ):
        if shoal.rank() == 3:
            time.sleep(3)
        else:
            with pytest.raises(shoal.Timeout) as caught:
                call()
            texts.append(f"{name}: {caught.value}")
        shoal.barrier()
    assert len(shoal.allgather(np.ones(rows), name="after")) == shoal.size() * rows
    shoal.shutdown()
    return texts


@pytest.mark.parametrize("rows", [8, 40_000])
def test_who_never_calls_is_named_on_both_nodes_and_the_job_goes_on(rows: int) -> None:
    found = run_ranks(one_never_calls, 4, rows, nodes=2, servers=1, environment={"SHOAL_TIMEOUT": "2"}, timeout=60)
    for texts in found[:3]:
        for name, text in zip(("blocks", "rows"), texts, strict=True):
            assert text.startswith(name), text
            assert f"rank 3 ({socket.gethostname()}) has not called it" in text, text


def disagreements(rows: int) -> list[str]:
    shoal.init()
    other_node = shoal.rank() >= 2
    texts = []
    for call in (
        lambda: shoal.allgather(np.ones((rows, 2 if other_node else 3)), name="blocks"),
        lambda: shoal.reducescatter(np.ones((rows, 2 if other_node else 3)), op="sum", name="rows"),
        lambda: shoal.allgather(np.ones(rows, np.float32 if other_node else np.float64), name="types"),
    ):
        with pytest.raises(shoal.Mismatch) as caught:
            call()
        texts.append(str(caught.value))
    assert len(shoal.allgather(np.ones(rows), name="blocks")) == shoal.size() * rows
    shoal.shutdown()
    return texts


@pytest.mark.parametrize("rows", [4, 40_000])
def test_nodes_that_disagree_are_named_and_the_job_goes_on(rows: int) -> None:
    for texts in run_ranks(disagreements, 4, rows, nodes=2, servers=1, timeout=60):
        for name, text in zip(("blocks", "rows", "types"), texts, strict=True):
            assert all(part in text for part in (f"'{name}'", "ranks 0 (", "ranks 2 (")), text


def different_kinds(rows: int) -> list[str]:
    shoal.init()
    values = np.ones(rows, np.float32)
    by_leaders: list[Callable[[str], object]] = [
        lambda name: shoal.allreduce(values, name=name),
        lambda name: shoal.allgather(values, name=name),
        lambda name: shoal.reducescatter(values, name=name),
    ]
    by_each_rank: list[Callable[[str], object]] = [
        lambda name: shoal.broadcast(values, name=name),
        lambda name: shoal.alltoall(values, name=name),
        lambda name: shoal.barrier(name=name),
    ]
    texts = []
    for first in by_leaders:
        for second in by_each_rank:
            call = first if shoal.rank() < 2 else second
            with pytest.raises(shoal.Mismatch) as caught:
                call("step")
            texts.append(str(caught.value))
    assert shoal.allreduce(values, op="sum", name="step")[0] == shoal.size()
    shoal.shutdown()
    return texts


# The one by way of the leaders, the other by each rank for itself: neither group sees the other's call.
@pytest.mark.parametrize(("rows", "servers"), [(4, 0), (4, 1), (40_000, 2)])
def test_nodes_that_call_different_kinds_hear_which_ranks_called_what(rows: int, servers: int) -> None:
    found = run_ranks(different_kinds, 4, rows, nodes=2, servers=servers, timeout=60)
    host = socket.gethostname()
    kinds = [
        (first, second)
        for first in ("allreduce", "allgather", "reducescatter")
        for second in ("broadcast", "alltoall", "barrier")
    ]
    for texts in found:
        for (first, second), text in zip(kinds, texts, strict=True):
            assert "'step': ranks disagree on the operation" in text, text
            assert f"ranks 0 ({host}), 1 ({host}) called {first}" in text, text
            assert f"ranks 2 ({host}), 3 ({host}) called {second}" in text, text


def scattered_shapes(rows: int) -> str:
    shoal.init()
    with pytest.raises(shoal.Mismatch) as caught:
        shoal.reducescatter(np.ones((rows, 2 if shoal.rank() >= 2 else 3)), op="sum", name="rows")
    shoal.shutdown()
    return str(caught.value)


@pytest.mark.parametrize("rows", [6, 30_000])
def test_nodes_that_disagree_hear_the_shapes_that_their_programs_have(rows: int) -> None:
    host = socket.gethostname()
    for text in run_ranks(scattered_shapes, 4, rows, nodes=2, servers=1, timeout=60):
        assert f"ranks 0 ({host}), 1 ({host}) called reducescatter sum float64[{rows}, 3]" in text, text
        assert f"ranks 2 ({host}), 3 ({host}) called reducescatter sum float64[{rows}, 2]" in text, text


def one_lacks_memory(rows: int) -> str:
    shoal.init()
    blocks = np.ones(rows, np.uint8)
    assert len(shoal.allgather(blocks, name="blocks")) == shoal.size() * rows
    before = resource.getrlimit(resource.RLIMIT_AS)
    if shoal.rank() == 3:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2 * rows, before[1]))
    with pytest.raises(shoal.ShoalError) as caught:
        shoal.allgather(blocks, name="blocks")
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert len(shoal.allgather(blocks, name="blocks")) == shoal.size() * rows
    shoal.shutdown()
    return str(caught.value)


def test_a_rank_without_memory_for_what_it_gathers_is_named_and_the_job_goes_on() -> None:
    rows = 64 * 1024 * 1024
    for text in run_ranks(one_lacks_memory, 4, rows, nodes=2, servers=1, timeout=60):
        assert f"'blocks' brings rank 3 ({socket.gethostname()}) {4 * rows} bytes, for which there is no memory" in text
