"""shoal.join: ranks with different numbers of batches, on one machine, on several nodes, with servers, and with the ring."""

import re
import signal
import time

import pytest
from join_scenarios import (
    adasum_beside_one_that_has_joined,
    calls_just_before_the_join,
    groups_of_some,
    one_dies,
    one_fails_while_another_has_joined,
    one_is_interrupted,
    one_never_joins,
    other_operations,
    steps_until_a_server_is_gone,
    uneven_batches,
)

import shoal
from shoal.testing import Cluster, run_ranks

RING = {"SHOAL_ALGORITHM": "ring"}

# Ranks, nodes, servers. One machine; a rank a node; nodes of several ranks.
JOBS = [
    pytest.param(3, 1, 0, id="one machine"),
    pytest.param(3, 3, 2, id="two servers"),
    pytest.param(3, 2, 0, id="two nodes"),
    pytest.param(3, 3, 0, id="no servers", marks=pytest.mark.slow),
    pytest.param(4, 2, 2, id="two nodes, two servers", marks=pytest.mark.slow),
    pytest.param(6, 3, 1, id="three nodes", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("ranks", "nodes", "servers"), JOBS)
def test_ranks_without_data_give_zeros_until_all_have_joined(ranks: int, nodes: int, servers: int) -> None:
    last = run_ranks(uneven_batches, ranks, nodes=nodes, servers=servers, timeout=120)
    assert last == [[ranks - 1, 0, ranks - 1]] * ranks


@pytest.mark.slow
def test_zeros_go_round_the_ring() -> None:
    assert run_ranks(uneven_batches, 3, environment=RING, timeout=120) == [[2, 0, 2]] * 3


@pytest.mark.parametrize(("ranks", "nodes", "servers"), [JOBS[0], JOBS[1], *JOBS[3:5]])
def test_calls_that_were_made_just_before_the_join_end_well(ranks: int, nodes: int, servers: int) -> None:
    last = run_ranks(calls_just_before_the_join, ranks, nodes=nodes, servers=servers, timeout=120)
    assert last == [ranks - 1] * ranks


@pytest.mark.parametrize(("ranks", "nodes", "servers"), JOBS[:5])
def test_other_operations_fail_and_name_the_rank_that_has_joined(ranks: int, nodes: int, servers: int) -> None:
    said = run_ranks(other_operations, ranks, nodes=nodes, servers=servers, timeout=120)
    for of_rank in said[1:]:
        assert len(of_rank) == 4
        for text, operation in zip(of_rank, ("allgather", "broadcast", "reducescatter", "alltoall"), strict=True):
            assert "rank 0 (" in text
            assert f"it has joined (shoal.join), and has nothing for {operation}" in text


@pytest.mark.parametrize(
    ("ranks", "nodes", "servers"), [JOBS[0], JOBS[1], pytest.param(4, 2, 1, id="two nodes of two ranks")]
)
@pytest.mark.parametrize("which", [1, -1])
def test_the_others_hear_on_which_rank_it_failed_and_not_of_one_that_has_joined(
    ranks: int, nodes: int, servers: int, which: int
) -> None:
    culprit = which % ranks
    said = run_ranks(one_fails_while_another_has_joined, ranks, culprit, nodes=nodes, servers=servers, timeout=60)
    for rank in set(range(1, ranks)) - {culprit}:
        assert f"failed on rank {culprit} (" in said[rank], said


@pytest.mark.parametrize("name", ["#join", "#joined"])
@pytest.mark.parametrize(("ranks", "nodes", "servers"), JOBS[:3])
def test_who_is_interrupted_joins_again(ranks: int, nodes: int, servers: int, name: str) -> None:
    last = run_ranks(one_is_interrupted, ranks, name, nodes=nodes, servers=servers, timeout=60)
    assert last == [[ranks - 1, ranks - 1]] * ranks


def test_adasum_has_no_zeros() -> None:
    said = run_ranks(adasum_beside_one_that_has_joined, 2, timeout=60)
    assert re.search(r"rank 0 \(.*\) has joined \(shoal.join\), and has nothing for adasum", said[1])


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_groups_join_by_themselves(nodes: int) -> None:
    assert run_ranks(groups_of_some, 3, nodes=nodes, timeout=60) == [[0, 2], [1], [2, 2]]


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_loss_of_a_rank_ends_the_wait_of_those_that_have_joined(nodes: int) -> None:
    with Cluster(3, nodes=nodes) as cluster:
        outcomes = cluster.start(one_dies).wait(60)
    for rank in (0, 2):
        assert "rank 1 (" in outcomes[rank].value, outcomes[rank].describe()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_who_never_joins_is_named_when_the_time_without_a_call_is_out(nodes: int) -> None:
    said = run_ranks(one_never_joins, 3, nodes=nodes, environment={"SHOAL_TIMEOUT": "3"}, timeout=60)
    for text in (said[0], said[2]):
        assert text.startswith("Timeout:"), said
        assert "rank 1 (" in text


@pytest.mark.slow
def test_a_server_is_lost_while_a_rank_has_joined() -> None:
    with Cluster(3, servers=2) as cluster:
        job = cluster.start(steps_until_a_server_is_gone, 150)
        deadline = time.monotonic() + 60
        while "working" not in job.stdout(1):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        cluster.servers[0].process.signal(signal.SIGKILL)
        assert job.results(120) == [[2]] * 3


def test_alone_a_rank_has_joined_at_once() -> None:
    shoal.init()
    try:
        assert shoal.join() == 0
        assert shoal.join(shoal.Group([0])) == 0
        with pytest.raises(TypeError, match=r"group must be a shoal\.Group"):
            shoal.join([0])  # type: ignore[arg-type]
    finally:
        shoal.shutdown()
