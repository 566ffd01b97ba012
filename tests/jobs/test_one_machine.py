"""Ranks of one machine, which share memory: what holds between nodes holds between them, and the data does not take the network."""

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy_ranks import INSIDE_NODE, work
from test_collectives import (
    bits_of_a_sum,
    everything,
    four_hundred_in_any_order,
    one_comes_late,
    overlapping_groups,
    same_names_again_and_again,
)
from test_killed_ranks import RANKS, kill_many, kill_one
from test_lifecycle import children_that_end, fork_and_be_killed, work_with_children_alive
from test_mismatch import disagreements, failures_before_submission, sizes_that_do_not_fit

import shoal
from shoal.job.runtime import current
from shoal.testing import Cluster, run_ranks

MEGABYTES = 4


def bytes_that_took_the_network() -> int:
    """Of a sum of ``MEGABYTES``."""
    shoal.init()
    before = current().engine.statistics()["bytes_sent"]
    shoal.allreduce(np.ones(MEGABYTES * 250_000, np.float32))
    after = current().engine.statistics()["bytes_sent"]
    shoal.shutdown()
    return after - before


def test_data_stays_inside_the_node_and_only_there() -> None:
    assert max(run_ranks(bytes_that_took_the_network, 3, nodes=1)) < 10_000
    assert min(run_ranks(bytes_that_took_the_network, 3, nodes=3)) > 1_000_000


def ports_that_are_open() -> list[str]:
    """Of this process, while it is in a job: local addresses of sockets that listen, or are connected, on a network."""
    shoal.init()
    shoal.allgather(np.ones(100_000))
    mine = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    tables = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    found = [fields[1] for fields in tables if f"socket:[{fields[9]}]" in mine]
    shoal.shutdown()
    return found


def test_no_port_is_opened() -> None:
    assert run_ranks(ports_that_are_open, 3, nodes=1) == [[], [], []]
    assert all(run_ranks(ports_that_are_open, 3, nodes=3))


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_operation_gives_what_numpy_gives(ranks: int) -> None:
    run_ranks(everything, ranks, nodes=1, timeout=120)


def test_the_bits_are_those_of_servers() -> None:
    inside = run_ranks(bits_of_a_sum, 4, nodes=1, timeout=60) + run_ranks(bits_of_a_sum, 4, nodes=1, timeout=60)
    assert len({*inside, *run_ranks(bits_of_a_sum, 4, servers=1, timeout=60)}) == 1


@pytest.mark.parametrize(
    "scenario", [one_comes_late, overlapping_groups, same_names_again_and_again, sizes_that_do_not_fit]
)
def test_what_ranks_may_do(scenario: Callable[[], None]) -> None:
    ranks = {overlapping_groups: 4, same_names_again_and_again: 3}.get(scenario, 2)
    run_ranks(scenario, ranks, nodes=1, timeout=60)


def test_operations_in_any_order() -> None:
    run_ranks(four_hundred_in_any_order, 4, {}, nodes=1, timeout=120)


@pytest.mark.parametrize(
    "elements", [pytest.param(5, id="small", marks=pytest.mark.slow), pytest.param(50_000, id="large")]
)
def test_every_rank_hears_of_a_disagreement_and_the_job_goes_on(elements: int) -> None:
    run_ranks(disagreements, 4, elements, nodes=1)


def test_what_fails_on_one_rank_before_it_is_sent_is_heard_by_the_others() -> None:
    run_ranks(failures_before_submission, 3, nodes=1)


def wait_for_one_that_does_not_come() -> None:
    shoal.init()
    everyone = shoal.Group(range(shoal.size()), timeout=1.0)
    shoal.allreduce(1.0, group=everyone)
    if shoal.rank() == 1:
        time.sleep(3.0)
    with pytest.raises(shoal.Timeout, match=r"'gradient' .* rank 1 "):
        shoal.allreduce(np.ones(100_000), name="gradient", group=everyone)
    assert shoal.allreduce(1.0, op="sum", name="next") == 3.0
    shoal.shutdown()


def test_who_is_late_is_named_to_all_and_the_job_goes_on() -> None:
    run_ranks(wait_for_one_that_does_not_come, 3, nodes=1)


def leave_early() -> None:
    shoal.init()
    x = np.ones(1_000_000, np.float32)
    assert shoal.allreduce(x, op="sum", name="together").sum() == x.size * shoal.size()
    if shoal.rank() == 2:
        shoal.shutdown()
        return
    with pytest.raises(shoal.PeerLost, match=r"rank 2 .* left"):
        shoal.allreduce(x, name="without")
    shoal.shutdown()


def test_an_operation_that_needs_who_has_left_says_so() -> None:
    run_ranks(leave_early, 3, nodes=1)


def test_every_other_rank_names_the_killed_one_within_two_seconds() -> None:
    first = random.randrange(1_000_000)
    with Cluster(RANKS, nodes=1) as cluster:
        for index in range(4):
            kill_one(cluster, first + index, with_loader=index == 0)


@pytest.mark.slow
@pytest.mark.parametrize("with_loader", [False, True], ids=["", "with a DataLoader"])
@pytest.mark.parametrize("batch", range(10))
def test_two_hundred_ranks_killed_while_others_sleep_in_shared_memory(batch: int, with_loader: bool) -> None:
    with Cluster(4, nodes=1) as cluster:
        kill_many(cluster, 10, with_loader=with_loader, operations=INSIDE_NODE)


def test_a_stopped_rank_is_not_lost() -> None:
    with Cluster(RANKS, nodes=1) as cluster:
        job = cluster.start(count_for_two_seconds)
        while not all("working" in job.stdout(rank) for rank in range(RANKS)):
            time.sleep(0.02)
        job.signal(1, signal.SIGSTOP)
        time.sleep(1.5)
        job.signal(1, signal.SIGCONT)
        assert len(set(job.results(30))) == 1


def count_for_two_seconds() -> Any:
    shoal.init()
    print("working", flush=True)
    x, rounds = np.ones(300_000, np.float32), 0
    # Rank 0's clock decides.
    began = time.monotonic()
    while shoal.allreduce(float(shoal.rank() == 0 and time.monotonic() - began > 2.0), op="max") == 0:
        assert shoal.allreduce(x, op="sum")[-1] == shoal.size()
        rounds += 1
    shoal.shutdown()
    return rounds


def raise_between_sums() -> None:
    shoal.init()
    x = np.ones(500_000, np.float32)
    for step in range(1000):
        shoal.allreduce_(x, name="gradient")
        if shoal.rank() == 1 and step == 20:
            raise ArithmeticError("the loss is infinite")


def test_why_a_rank_has_ended_is_what_the_others_say() -> None:
    with Cluster(RANKS, nodes=1) as cluster:
        for outcome in cluster.start(raise_between_sums).wait(30):
            expected = (
                "the loss is infinite"
                if outcome.rank == 1
                else "rank 1 .* ended with an error: ArithmeticError: the loss"
            )
            assert re.search(expected, str(outcome.exception)), outcome.describe()


def test_forked_children_do_not_disturb(tmp_path: Path) -> None:
    run_ranks(work_with_children_alive, 2, nodes=1)
    run_ranks(children_that_end, 2, nodes=1)
    with Cluster(2, nodes=1) as cluster:
        lost = cluster.start(fork_and_be_killed, str(tmp_path)).wait(30)[0]
    assert isinstance(lost.exception, shoal.PeerLost), lost.describe()


def test_nothing_is_left_in_dev_shm() -> None:
    before = set(Path("/dev/shm").iterdir())
    with Cluster(RANKS, nodes=1) as cluster:
        job = cluster.start(work, "large all-reduce", False)
        while not all("working" in job.stdout(rank) for rank in range(RANKS)):
            time.sleep(0.02)
        job.kill()
    assert not set(Path("/dev/shm").iterdir()) - before
