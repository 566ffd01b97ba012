"""``send`` and ``recv`` of the backend "shoal" whose other rank is gone before the two have connected: PeerLost, soon."""

import contextlib
import os
import re
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


def recv_from_who_is_late() -> list[str] | None:
    """Rank 0 sends after rank 1 has given up. What rank 1 hears, with what is in its tensors in the end."""
    dist.init_process_group("shoal", timeout=timedelta(seconds=1))
    dist.all_reduce(torch.ones(1))
    other = dist.new_group(timeout=timedelta(seconds=10))
    dist.barrier(group=other)
    heard: list[str] | None = None
    if dist.get_rank() == 0:
        time.sleep(1.5)
        for number in (1.0, 2.0):
            # Whether sending works is gloo's to say.
            with contextlib.suppress(shoal.ShoalError):
                dist.send(torch.full((3,), number), 1)
    else:
        heard = []
        tensors = [torch.zeros(3) for _ in range(2)]
        for tensor in tensors:
            try:
                dist.recv(tensor, 0)
            except shoal.ShoalError as error:
                heard.append(f"{type(error).__name__}: {error}")
            tensor.fill_(7.0)
        time.sleep(1.5)
        heard.append(str([tensor.tolist() for tensor in tensors]))
    dist.barrier(group=other)
    # Another group has connections of its own.
    again = torch.full((1,), 5.0)
    if dist.get_rank() == 0:
        dist.send(again, 1, group=other)
    else:
        dist.recv(again.zero_(), 0, group=other)
    assert again.item() == 5.0
    dist.destroy_process_group()
    return heard


def test_after_a_timeout_no_message_comes_into_the_tensors_of_others() -> None:
    _, heard = run_ranks(recv_from_who_is_late, 2)
    assert heard is not None
    assert re.match(r"Timeout: recv from rank 0 .* nothing has come for 1 s", heard[0])
    assert re.match(
        r"ShoalError: recv from rank 0 .* has timed out, so its group has no send and recv any more", heard[1]
    )
    assert heard[2] == str([[7.0] * 3] * 2)


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
