"""A dedicated server is killed in the middle of a step: the others go on, and the parameters are those of an undisturbed run."""

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.testing import Cluster

RANKS = 3
STEPS = 40

# Far beyond what a recovery takes, for a slow machine; what it takes is asserted to be less than this.
SECONDS = 120


def train(folder: str) -> tuple[bytes, float]:
    """Some steps of averaging in place, beside operations of every other kind; the parameters, and the longest step."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    generator = np.random.default_rng(rank)
    parameters = np.zeros(200_003, np.float32)
    longest = 0.0
    for step in range(STEPS):
        begin = time.monotonic()
        gradient = generator.standard_normal(parameters.size).astype(np.float32)
        handles = [
            shoal.allreduce_async_(gradient[at : at + 50_000], name=f"window {at}")
            for at in range(0, parameters.size, 50_000)
        ]
        loss = shoal.allreduce(np.float32(step + rank), name="loss")
        for handle in handles:
            handle.wait()
        parameters -= np.float32(0.1) * gradient
        rows = shoal.reducescatter(parameters.reshape(-1, 1)[: 3 * size], op="sum", name="rows")
        everyone = shoal.allgather(rows, name="everyone")
        shoal.broadcast(everyone, root=step % size, name="order")
        parameters[0] += np.float32(loss) + everyone.sum(dtype=np.float32)
        shoal.barrier()
        longest = max(longest, time.monotonic() - begin)
        if rank == 0:
            (Path(folder) / "step").write_text(str(step + 1))
    shoal.shutdown()
    return parameters.tobytes(), longest


def steps_done(folder: Path) -> int:
    try:
        return int((folder / "step").read_text() or 0)
    except FileNotFoundError:
        return 0


def run(folder: Path, servers: int, kills: int, seed: int) -> list[tuple[bytes, float]]:
    folder.mkdir()
    chance = random.Random(seed)
    with Cluster(RANKS, servers=servers) as cluster:
        job = cluster.start(train, str(folder))
        for victim in chance.sample(range(servers), kills):
            begin, step = time.monotonic(), steps_done(folder)
            while steps_done(folder) <= step and time.monotonic() - begin < SECONDS:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.03)
            cluster.servers[victim].process.signal(signal.SIGKILL)
        return list(job.results(SECONDS))


@pytest.mark.parametrize(("servers", "kills"), [(2, 1), (3, 1), (3, 2)])
def test_killed_servers_change_no_bit(servers: int, kills: int, tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "undisturbed", servers, 0, 0)
    disturbed = run(tmp_path / "disturbed", servers, kills, 1)
    parameters = {ranks_own for ranks_own, _ in undisturbed + disturbed}
    assert len(parameters) == 1
    assert max(longest for _, longest in disturbed) < 5
