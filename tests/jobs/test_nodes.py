"""Nodes of several ranks with others beside them: one rank of each speaks for it on the network."""

import random
import socket
import time

import numpy as np
import pytest
from test_collectives import bits_of_a_sum, everything, four_hundred_in_any_order, same_names_again_and_again
from test_killed_ranks import RANKS, kill_many, kill_one
from test_mismatch import disagreements, failures_before_submission

import shoal
from shoal.job.runtime import current
from shoal.testing import Cluster, run_ranks

MEGABYTES = 4


def bytes_that_took_the_network() -> tuple[int, int]:
    """Sent and received by this process for an operation of MEGABYTES."""
    shoal.init()
    shoal.barrier()
    before = current().engine.statistics()
    shoal.allreduce(np.ones(MEGABYTES * 250_000, np.float32))
    after = current().engine.statistics()
    shoal.barrier()
    shoal.shutdown()
    return (after["bytes_sent"] - before["bytes_sent"], after["bytes_received"] - before["bytes_received"])


def test_a_node_sends_and_receives_an_array_once() -> None:
    moved = run_ranks(bytes_that_took_the_network, 4, nodes=2, servers=1, timeout=60)
    for sent, received in (moved[0], moved[2]):
        assert sent == pytest.approx(MEGABYTES * 1e6, rel=0.03)
        assert received == pytest.approx(MEGABYTES * 1e6, rel=0.03)
    for sent, received in (moved[1], moved[3]):
        assert max(sent, received) < 10_000


@pytest.mark.parametrize(
    ("ranks", "nodes", "servers"),
    [(3, 2, 0), *(pytest.param(*job, marks=pytest.mark.slow) for job in ((4, 2, 1), (8, 4, 2)))],
)
def test_every_operation_gives_what_numpy_gives(ranks: int, nodes: int, servers: int) -> None:
    run_ranks(everything, ranks, nodes=nodes, servers=servers, timeout=150)


@pytest.mark.slow
def test_the_same_bits_on_every_run() -> None:
    bits = [run_ranks(bits_of_a_sum, 4, nodes=2, servers=servers, timeout=60) for servers in (0, 1, 2, 1)]
    assert len({one for ranks in bits for one in ranks}) == 1


def sums_of_middle_sizes() -> None:
    shoal.init()
    generator = np.random.default_rng(11)
    for kib in (17, 31, 33, 48, 63, 65, 127, 129, 200):
        values = generator.uniform(-1, 1, (shoal.size(), kib * 256)).astype(np.float32)
        handles = [shoal.allreduce_async(values[shoal.rank()], op="sum", name=f"{kib}/{turn}") for turn in range(4)]
        for handle in handles:
            np.testing.assert_allclose(handle.wait(), values.sum(axis=0), atol=1e-5)
    shoal.shutdown()


# Of one server, of some and of all, `least_shard` being 16 KiB on one machine.
def test_arrays_that_not_all_servers_work_on() -> None:
    run_ranks(sums_of_middle_sizes, 8, nodes=2, servers=6, timeout=60)


def sums_into_new_arrays() -> None:
    shoal.init()
    for elements in (1_000, 300_000, 2_000_000):
        values = np.arange(elements, dtype=np.float32) % 1000
        summed = shoal.allreduce(values + shoal.rank(), op="sum")
        assert np.array_equal(summed, shoal.size() * values + sum(range(shoal.size())))
    shoal.shutdown()


def test_a_node_with_one_rank_beside_nodes_with_several_contributes_its_array() -> None:
    run_ranks(sums_into_new_arrays, 3, nodes=2, timeout=60)


def groups_in_the_other_order() -> None:
    shoal.init()
    orders = [[0, 1, 2, 3], [1, 0, 2, 3], [0, 2]]
    backwards = shoal.rank() >= 2
    groups = {}
    for index in reversed(range(3)) if backwards else range(3):
        if shoal.rank() in orders[index]:
            groups[index] = shoal.Group(orders[index])
    for index, group in sorted(groups.items()):
        summed = shoal.allreduce(np.full(70_000, 10.0**index, np.float32), op="sum", name="weight", group=group)
        assert np.all(summed == len(orders[index]) * 10.0**index)
    shoal.shutdown()


def test_groups_of_all_ranks_are_told_apart_in_whatever_order_nodes_make_them() -> None:
    run_ranks(groups_in_the_other_order, 4, nodes=2, timeout=60)


def means_of_sixteen_bits() -> None:
    shoal.init()
    generator = np.random.default_rng(7)
    all_values = generator.uniform(0.5, 2.0, (shoal.size(), 50_000))
    for scale in (1.0, 30_000.0):  # in half precision the sum of two of the larger ones overflows
        values = (all_values * scale).astype(np.float16)
        mean = shoal.allreduce(values[shoal.rank()], op="mean")
        right = values.astype(np.float64).mean(axis=0)
        # Rounded twice, each time by half a unit in the last place; a node's part may have a larger unit.
        units = np.abs(mean.astype(np.float64) - right) / np.spacing(right.astype(np.float16)).astype(np.float64)
        assert units.max() <= 1.5, units.max()
    shoal.shutdown()


@pytest.mark.parametrize("ranks", [pytest.param(8, id="even", marks=pytest.mark.slow), pytest.param(5, id="uneven")])
def test_means_of_sixteen_bits_are_rounded_twice_and_do_not_overflow(ranks: int) -> None:
    run_ranks(means_of_sixteen_bits, ranks, nodes=2, servers=1, timeout=60)


def test_operations_in_any_order() -> None:
    run_ranks(four_hundred_in_any_order, 4, {}, nodes=2, servers=1, timeout=120)


def test_names_come_again() -> None:
    run_ranks(same_names_again_and_again, 3, nodes=2, servers=1, timeout=60)


@pytest.mark.parametrize(
    "elements", [pytest.param(5, id="small", marks=pytest.mark.slow), pytest.param(50_000, id="large")]
)
def test_every_rank_of_every_node_hears_of_a_disagreement_and_the_job_goes_on(elements: int) -> None:
    run_ranks(disagreements, 4, elements, nodes=2, servers=1, timeout=60)


def test_what_fails_on_one_rank_is_heard_on_both_nodes() -> None:
    run_ranks(failures_before_submission, 4, nodes=2, servers=1, timeout=60)


def one_never_calls(who: int) -> str:
    shoal.init()
    shoal.allreduce(np.ones(3), name="before")
    text = ""
    if shoal.rank() != who:
        with pytest.raises(shoal.Timeout) as caught:
            shoal.allreduce(np.ones(50_000), name="late")
        text = str(caught.value)
    else:
        time.sleep(3)
    # The job goes on, also where it was not called.
    shoal.barrier()
    assert shoal.allreduce(np.ones(50_000), op="sum", name="after")[0] == shoal.size()
    shoal.shutdown()
    return text


@pytest.mark.parametrize("who", [3, *(pytest.param(who, marks=pytest.mark.slow) for who in (0, 1, 2))])
def test_who_never_calls_is_named_on_both_nodes_and_the_job_goes_on(who: int) -> None:
    texts = run_ranks(one_never_calls, 4, who, nodes=2, servers=1, environment={"SHOAL_TIMEOUT": "2"}, timeout=60)
    for rank, text in enumerate(texts):
        assert rank == who or f"rank {who} ({socket.gethostname()}) has not called it" in text, texts


def test_the_loss_of_any_rank_is_heard_by_all() -> None:
    with Cluster(RANKS, servers=1, nodes=2) as cluster:
        first = random.randrange(1_000_000)
        for index in range(4):
            kill_one(cluster, first + index, with_loader=index == 0)


@pytest.mark.slow
@pytest.mark.parametrize("with_loader", [False, True], ids=["", "with a DataLoader"])
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("batch", range(2))
def test_eighty_ranks_killed_at_random_moments(batch: int, ranks: int, with_loader: bool) -> None:
    with Cluster(ranks, servers=1, nodes=2) as cluster:
        kill_many(cluster, 10, with_loader=with_loader)
