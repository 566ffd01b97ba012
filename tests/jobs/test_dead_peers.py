"""``send`` and ``recv`` of the backend "shoal" whose other rank is gone before the two have connected: PeerLost, soon."""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import shoal
from shoal.testing import Cluster, run_ranks

PROMPT = 3.0


def wait_for_a_killed_rank(called: str) -> tuple[str, int, float]:
    """Rank 1 is killed before it has exchanged a message. What rank 0 raises, the rank in it, and after how many seconds."""
    dist.init_process_group("shoal", timeout=timedelta(seconds=30))
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _waited(called)


def wait_for_a_rank_that_has_left(called: str) -> tuple[str, int, float] | None:
    """The same, of a rank 1 that has destroyed its process group and ended well."""
    dist.init_process_group("shoal", timeout=timedelta(seconds=30))
    dist.barrier()
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return None
    return _waited(called)


def _waited(called: str) -> tuple[str, int, float]:
    begun = time.monotonic()
    try:
        if called == "recv":
            dist.recv(torch.empty(3), 1)
        else:
            dist.send(torch.ones(1 << 20), 1)
    except shoal.PeerLost as error:
        return str(error), error.rank, time.monotonic() - begun
    raise AssertionError(f"{called} has ended well")


def test_a_killed_rank_is_named_by_recv_and_send() -> None:
    with Cluster(2) as cluster:
        for called, said in (("recv", "recv from rank 1"), ("send", "send to rank 1")):
            survivor, victim = cluster.start(wait_for_a_killed_rank, called).wait(40)
            assert victim.exit_code == -signal.SIGKILL
            assert survivor.value is not None, survivor.describe()
            text, rank, seconds = survivor.value
            assert said in text
            assert rank == 1
            assert seconds < PROMPT, text


def test_a_rank_that_has_left_is_named_by_recv() -> None:
    (text, rank, seconds), _ = run_ranks(wait_for_a_rank_that_has_left, 2, "recv")
    assert "recv from rank 1" in text
    assert "has left the job normally" in text
    assert rank == 1
    assert seconds < PROMPT, text
