"""Groups of some of a machine's ranks: they work in the memory that these share, each for itself, whatever else the job has."""

import random
import resource
import signal
import time

import numpy as np
import pytest
from test_collectives import check, expected, given
from test_killed_ranks import wait_until_working
from test_shared_arrays import shared_array

import shoal
from shoal.job.runtime import current
from shoal.ops.operations import chunk
from shoal.testing import Cluster, run_ranks

RANKS = 4


def every_operation(group: shoal.Group, rows: int, dtype: str) -> None:
    """What each brings, in arrays of so many rows for each member, is what NumPy says."""
    place, members, rank = group.rank, list(group.ranks), shoal.rank()
    assert place is not None
    shape = (rows * group.size, 3)
    what = (group, rows, dtype)
    inputs = [given(member, shape, dtype) for member in members]
    for op in ("sum", "max") if "int" in dtype else ("sum", "mean", "max"):
        want = expected(op, shape, dtype, members)
        check((what, op), shoal.allreduce(given(rank, shape, dtype), op=op, group=group), want)
        begin, end = chunk(shape[0], group.size, place)
        check((what, op), shoal.reducescatter(given(rank, shape, dtype), op=op, group=group), want[begin:end])
    for root in members:
        check(what, shoal.broadcast(given(rank, shape, dtype), root, group=group), given(root, shape, dtype))
    mine = given(rank, (rows + place, 3), dtype)
    blocks = [given(member, (rows + index, 3), dtype) for index, member in enumerate(members)]
    check(what, shoal.allgather(mine, group=group), np.concatenate(blocks))
    parts = [block[rows * place : rows * (place + 1)] for block in inputs]
    check(what, shoal.alltoall(inputs[place], [rows] * group.size, group=group), np.concatenate(parts))
    shoal.barrier(group=group)


def all_of_it(groups: list[list[int]]) -> tuple[int, int]:
    """In each of these groups that this rank is in, made in an order of its own. Bytes that it has moved, and that took the network."""
    shoal.init()
    shoal.barrier()
    before = current().engine.statistics()["bytes_sent"]
    mine = [members for members in groups if shoal.rank() in members]
    random.Random(shoal.rank()).shuffle(mine)
    made = {tuple(members): shoal.Group(members) for members in mine}
    moved = 0
    for members in groups:
        for dtype in ("float32", "bfloat16", "int64"):
            for rows in (0, 1, 50, 40_000):
                if tuple(members) in made:
                    every_operation(made[tuple(members)], rows, dtype)
                    moved += rows * len(members) * 3 * 2
    sent = current().engine.statistics()["bytes_sent"] - before
    shoal.barrier()
    shoal.shutdown()
    return moved, sent


def test_every_operation_gives_what_numpy_gives_and_nothing_takes_the_network() -> None:
    for moved, sent in run_ranks(all_of_it, RANKS, [[0, 1], [3, 2], [1, 3, 0], [2, 1]], nodes=1, timeout=120):
        assert moved > 1_000_000
        assert sent < 10_000


def test_groups_within_one_of_several_nodes_ask_nothing_of_the_network() -> None:
    """Also those of a whole node."""
    for moved, sent in run_ranks(all_of_it, 6, [[2, 0], [4, 5], [1, 2, 0], [3, 5]], nodes=2, servers=1, timeout=120):
        assert moved > 1_000_000
        assert sent < 10_000


def test_groups_that_reach_beyond_a_node_use_it() -> None:
    for moved, sent in run_ranks(all_of_it, RANKS, [[1, 2], [3, 0]], nodes=2, servers=1, timeout=120):
        assert sent > moved > 1_000_000


def at_once() -> None:
    """Different groups, with several operations open in each, and waited for in any order. Large arrays lie in shared memory."""
    shoal.init()
    chance = random.Random(shoal.rank())
    groups = [shoal.Group(ranks) for ranks in ([0, 1], [2, 3], [1, 2], [3, 0, 1]) if shoal.rank() in ranks]
    groups.append(shoal.Group(range(shoal.size())))
    inputs = [
        (group, shared_array(size) if size > 100_000 else np.empty(size, np.float32))
        for group in groups
        for size in (10, 5_000, 300_000)
    ]
    for step in range(10):
        chance.shuffle(inputs)
        open_ = []
        for group, x in inputs:
            x[:] = shoal.rank() + step
            open_.append((group, shoal.allreduce_async_(x, op="sum", name=str(x.size), group=group)))
        chance.shuffle(open_)
        for group, handle in open_:
            result = handle.wait()
            assert result.min() == result.max() == sum(group.ranks) + step * group.size
    shoal.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_groups_flow_side_by_side(nodes: int) -> None:
    run_ranks(at_once, RANKS, nodes=nodes, timeout=60)


def more_groups_than_there_is_memory_for() -> int:
    # The file that ranks share has room for some of the groups.
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 20, 12 << 20))
    shoal.init()
    before = current().engine.statistics()["bytes_sent"]
    if shoal.rank() < 2:
        numbers = list(range(6))
        random.Random(shoal.rank()).shuffle(numbers)
        groups = {number: shoal.Group([0, 1], name=str(number)) for number in numbers}
        for number in range(6):
            x = np.full(10_000, shoal.rank() + number, np.float32)
            assert set(shoal.allreduce(x, op="sum", group=groups[number])) == {1 + 2 * number}
    shoal.barrier()
    sent = current().engine.statistics()["bytes_sent"] - before
    shoal.shutdown()
    return sent


def test_what_finds_no_memory_for_its_group_goes_another_way() -> None:
    """Some of 6 groups do, each with 40,000 bytes a rank."""
    sent = run_ranks(more_groups_than_there_is_memory_for, 3, nodes=1, timeout=60)
    for rank in range(2):
        assert 1 * 40_000 <= sent[rank] < 6 * 40_000


def one_is_late() -> None:
    shoal.init()
    if shoal.rank() == 3:
        shoal.barrier()
        shoal.shutdown()
        return
    group = shoal.Group([2, 0, 1], timeout=2.0)
    shoal.barrier(group=group)
    if shoal.rank() == 1:
        time.sleep(3.0)
    with pytest.raises(shoal.Timeout, match=r"'gradient' .* rank 1 "):
        shoal.allreduce(np.ones(100_000), name="gradient", group=group)
    assert shoal.allreduce(1.0, op="sum", name="next", group=group) == 3.0
    shoal.barrier()
    shoal.shutdown()


def test_who_is_late_is_named_to_the_group_and_the_job_goes_on() -> None:
    run_ranks(one_is_late, RANKS, nodes=1, timeout=60)


def one_leaves_early() -> float:
    """Of a group that it has not even made."""
    shoal.init()
    if shoal.rank() == 2:
        shoal.shutdown()
        return 0
    group = shoal.Group([2, shoal.rank()])
    begun = time.monotonic()
    with pytest.raises(shoal.PeerLost, match=r"rank 2 .* left"):
        shoal.allreduce(np.ones(100_000), name="without", group=group)
    seconds = time.monotonic() - begun
    both = shoal.Group([0, 1])
    assert shoal.allreduce(1.0, op="sum", group=both) == 2.0
    shoal.shutdown()
    return seconds


def test_a_group_that_needs_who_has_left_says_so() -> None:
    assert max(run_ranks(one_leaves_early, 3, nodes=1, timeout=60)) < 10


def disagree() -> None:
    shoal.init()
    group = shoal.Group([2, 1])
    if shoal.rank() != 0:
        with pytest.raises(shoal.Mismatch, match=r"rank 1 .*rank 2|rank 2 .*rank 1"):
            shoal.allreduce(np.ones(10 + shoal.rank()), name="gradient", group=group)
        assert shoal.allreduce(1.0, op="sum", group=group) == 2.0
    shoal.barrier()
    shoal.shutdown()


def test_members_that_disagree_are_told() -> None:
    run_ranks(disagree, 3, nodes=1, timeout=60)


def repeat_in_a_part() -> None:
    """All but the last rank, which waits for all of them."""
    shoal.init()
    part = shoal.Group([2, 0, 1]) if shoal.rank() < 3 else None
    x = np.ones(500_000, np.float32)
    if part is not None:
        shoal.barrier(group=part)
    print("working", flush=True)
    if part is None:
        shoal.barrier()
    while True:
        shoal.allreduce_(x, name="gradient", group=part)


def test_a_killed_rank_is_named_by_members_and_others() -> None:
    with Cluster(RANKS, nodes=1) as cluster:
        for victim in (1, 2):
            job = cluster.start(repeat_in_a_part)
            wait_until_working(job)
            time.sleep(random.uniform(0, 0.2))
            job.signal(victim, signal.SIGKILL)
            for outcome in job.wait(30):
                if outcome.rank != victim:
                    assert isinstance(outcome.exception, shoal.PeerLost), outcome.describe()
                    assert outcome.exception.rank == victim
