"""Arrays in memory that the ranks of a machine share: sums are right, and what forked children, the end of a job and small limits do to them."""

import hashlib
import os
import random
import resource
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch_training
from test_killed_ranks import PROMPT
from test_server_loss import wait_for_step

import shoal
from shoal.job import runtime
from shoal.testing import Cluster, run_ranks

RANKS = 4
LARGE = 3_000_001


def shared_array(count: int, dtype: Any = np.float32) -> Any:
    memory = runtime.allocate(count * np.dtype(dtype).itemsize)
    assert memory is not None, "the ranks of this job share no memory"
    return memory.view(dtype)


def bits_of_sums(shared: bool) -> list[str]:
    shoal.init()
    found = []
    for dtype in (np.float16, np.float32, np.float64):
        values = np.random.default_rng(shoal.rank()).standard_normal(LARGE).astype(dtype)
        for begin, end in ((0, LARGE), (1, 5000), (77, 100_000)):
            x = shared_array(end - begin, dtype) if shared else np.empty(end - begin, dtype)
            x[:] = values[begin:end]
            shoal.allreduce_(x, op="mean")
            found.append(hashlib.sha256(x.tobytes()).hexdigest())
    shoal.shutdown()
    return found


@pytest.mark.parametrize(
    ("ranks", "nodes", "servers"),
    [
        pytest.param(RANKS, 1, 0, marks=pytest.mark.slow),
        (3, 2, 1),
        pytest.param(5, 2, 2, marks=pytest.mark.slow),
    ],
)
def test_the_bits_are_those_of_arrays_elsewhere(ranks: int, nodes: int, servers: int) -> None:
    results = [
        bits
        for shared in (True, False)
        for bits in run_ranks(bits_of_sums, ranks, shared, nodes=nodes, servers=servers, timeout=120)
    ]
    assert all(result == results[0] for result in results)


def bytes_that_took_the_network(count: int) -> tuple[int, int]:
    """Sent and received by this process for so many float32."""
    shoal.init()
    x = shared_array(count)
    shoal.barrier()
    before = runtime.current().engine.statistics()
    shoal.allreduce_(x)
    after = runtime.current().engine.statistics()
    shoal.barrier()
    shoal.shutdown()
    return (after["bytes_sent"] - before["bytes_sent"], after["bytes_received"] - before["bytes_received"])


def test_they_cross_the_network_once_from_each_node() -> None:
    moved = run_ranks(bytes_that_took_the_network, 4, 1_000_000, nodes=2, servers=1, timeout=60)
    for sent, received in (moved[0], moved[2]):
        assert sent == pytest.approx(4e6, rel=0.03)
        assert received == pytest.approx(4e6, rel=0.03)
    for sent, received in (moved[1], moved[3]):
        assert max(sent, received) < 10_000


def sum_step_by_step(steps: int) -> str:
    """Says which step it has begun; the digest of all bits."""
    shoal.init()
    generator = np.random.default_rng(shoal.rank())
    x, digest = shared_array(LARGE), hashlib.sha256()
    for step in range(steps):
        x[:] = generator.standard_normal(LARGE, np.float32)
        print("step", step, flush=True)
        shoal.allreduce_(x, op="mean", name="gradient")
        digest.update(x.tobytes())
    shoal.shutdown()
    return digest.hexdigest()


@pytest.mark.slow
def test_a_server_killed_in_the_middle_changes_no_bit_of_them() -> None:
    """Nodes send from them again, and results come into them again."""
    steps, chance = 15, random.Random(seed := random.randrange(1_000_000))
    (right,) = set(run_ranks(sum_step_by_step, RANKS, steps, nodes=2, servers=1, timeout=120))
    with Cluster(RANKS, nodes=2, servers=2) as cluster:
        job = cluster.start(sum_step_by_step, steps)
        for victim in range(2):
            wait_for_step(job, 3 + 4 * victim, range(RANKS))
            time.sleep(chance.uniform(0.0, 0.05))
            cluster.servers[victim].process.signal(signal.SIGKILL)
        assert set(job.results(120)) == {right}, f"seed {seed}"
        assert job.stderr(0).count(" is lost: ") == 2, f"seed {seed}: {job.stderr(0)}"


def use_afterwards() -> None:
    for _ in range(3):
        shoal.init()
        kept = shared_array(LARGE)
        kept[:] = 1
        shoal.allreduce_(kept, op="sum")
        shoal.shutdown()
        assert kept.min() == kept.max() == RANKS
        kept[:] = 7
    assert runtime.allocate(1000) is None


def test_arrays_outlive_the_job() -> None:
    run_ranks(use_afterwards, RANKS, nodes=1)


def read_in_a_child() -> None:
    shoal.init()
    x = shared_array(LARGE)
    x[:] = 1
    shoal.allreduce_(x, op="sum")
    child = os.fork()
    if child == 0:
        right = x.min() == x.max() == RANKS
        x[:] = -1
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    shoal.barrier()
    assert x.min() == x.max() == shoal.size()
    shoal.shutdown()


def test_a_forked_child_reads_them_and_changes_only_its_own() -> None:
    run_ranks(read_in_a_child, RANKS, nodes=1)


def with_few_addresses() -> None:
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    shoal.init()
    assert (runtime.allocate(1000) is None) == (shoal.rank() == 1)
    x = np.ones(LARGE, np.float32) if shoal.rank() == 1 else shared_array(LARGE)
    x[:] = 1
    assert shoal.allreduce_(x, op="sum").max() == shoal.size()
    shoal.shutdown()


@pytest.mark.slow
def test_a_rank_without_enough_addresses_takes_ordinary_memory() -> None:
    run_ranks(with_few_addresses, RANKS, nodes=1)


def train_and_look() -> tuple[str, bool]:
    trained = torch_training.train_together(0.005)
    return trained.digest, runtime.allocate(1) is not None


@pytest.mark.slow
def test_training_gives_the_bits_that_it_gives_with_servers() -> None:
    inside = run_ranks(train_and_look, RANKS, nodes=1)
    assert all(shared for _, shared in inside)
    assert {digest for digest, _ in inside} == {
        trained.digest for trained in run_ranks(torch_training.train_together, RANKS, 0.005, servers=1)
    }


def sum_until_one_is_killed() -> tuple[int, float]:
    """The rank that is lost, and when this one knew. Nothing is written into its array from then on."""
    shoal.init()
    x = shared_array(10_000_000)
    print("working", flush=True)
    try:
        while True:
            shoal.allreduce_(x, op="mean", name="gradient")
    except shoal.PeerLost as error:
        known, lost = time.monotonic(), error.rank
    x[:] = 7
    time.sleep(0.2)
    assert x.min() == x.max() == 7
    return lost, known


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "servers"), [(1, 0), (2, 1)])
def test_nothing_is_written_into_them_when_a_rank_was_killed(nodes: int, servers: int) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    with Cluster(RANKS, nodes=nodes, servers=servers) as cluster:
        for _ in range(4):
            job = cluster.start(sum_until_one_is_killed)
            while not all("working" in job.stdout(rank) for rank in range(RANKS)):
                time.sleep(0.02)
            time.sleep(chance.uniform(0.0, 0.2))
            victim, killed = chance.randrange(RANKS), time.monotonic()
            job.signal(victim, signal.SIGKILL)
            for outcome in job.wait(30):
                if outcome.rank != victim:
                    lost, known = outcome.value
                    assert lost == victim, f"seed {seed}: {outcome.describe()}"
                    assert known - killed < PROMPT, f"seed {seed}"
