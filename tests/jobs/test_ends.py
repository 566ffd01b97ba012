"""The end of a process while threads of its own are in an operation, and forked children with what they inherit."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import shoal
import shoal.torch
from shoal.testing import Cluster, run_ranks

LIMIT = 20.0  # for a child to end, in seconds


def wait_in_a_barrier() -> None:
    shoal.barrier()


def wait_again_and_again() -> None:
    while True:
        shoal.allreduce(np.ones(3))


def wait_in_a_callback() -> None:
    shoal.allreduce_async(np.ones(3), name="first").call_when_done(shoal.barrier)


def wait_by_torch() -> None:
    dist.barrier()


def end_with_a_thread_in(operation: Callable[[], None]) -> None:
    if operation is wait_by_torch:
        dist.init_process_group("shoal")
    else:
        shoal.init()
    if shoal.rank() == 0:
        threading.Thread(target=operation, daemon=True).start()
    elif operation is wait_in_a_callback:
        shoal.allreduce(np.ones(3), name="first")
    time.sleep(0.3)


@pytest.mark.parametrize(
    ("operation", "nodes"),
    [
        (wait_in_a_barrier, 1),
        pytest.param(wait_in_a_barrier, 2, marks=pytest.mark.slow),
        (wait_again_and_again, 2),
        pytest.param(wait_in_a_callback, 1, marks=pytest.mark.slow),
        (wait_by_torch, 1),
    ],
)
def test_a_process_ends_well_while_a_daemon_thread_waits(operation: Callable[[], None], nodes: int) -> None:
    with Cluster(2, nodes=nodes) as cluster:
        for outcome in cluster.start(end_with_a_thread_in, operation).wait(60):
            assert outcome.exit_code == 0, outcome.describe()
            assert "terminate" not in outcome.stderr, outcome.describe()


def said_by_a_child(*attempts: Callable[[], Any]) -> list[str]:
    """What each of these raised in a forked child that then ends as interpreters do. Fails if that does not end well."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for attempt in attempts:
            try:
                attempt()
                said = "nothing"
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, said.encode() + b"\n")
        raise SystemExit(0)
    os.close(write)
    begin = time.monotonic()
    ended = (0, 0)
    while ended[0] == 0 and time.monotonic() - begin < LIMIT:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    assert ended == (child, 0), "the child has not ended well"
    with os.fdopen(read) as file:
        return file.read().splitlines()


def use_what_is_inherited() -> list[str]:
    dist.init_process_group("shoal")
    other = 1 - dist.get_rank()
    ones = torch.ones(2)
    everyone = dist.new_group([0, 1])
    dist.all_reduce(ones)
    # By gloo, whose threads do not exist in the child.
    dist.broadcast_object_list([dist.get_rank()], 0)
    dist.reduce(ones, 0)
    model = shoal.torch.DistributedDataParallel(torch.nn.Linear(2, 1))
    late = shoal.allreduce_async(ones, name="late") if other == 0 else None

    said = said_by_a_child(
        lambda: dist.all_reduce(ones),
        lambda: dist.barrier(everyone),
        lambda: dist.reduce(ones, 0),
        lambda: dist.send(ones, other),
        lambda: dist.all_gather_into_tensor(torch.empty(4), ones),
        lambda: dist.new_group([dist.get_rank()]),
        lambda: model(ones).sum().backward() if late is None else late.wait(),
        lambda: shoal.allreduce(ones),
        shoal.rank,
        dist.destroy_process_group,
        shoal.shutdown,
    )
    dist.barrier()
    if late is None:
        shoal.allreduce(ones, name="late")
    else:
        late.wait()
    dist.destroy_process_group()
    return said


def test_a_forked_child_is_told_what_it_cannot_use_and_may_destroy_it() -> None:
    for said in run_ranks(use_what_is_inherited, 2):
        *refused, destroyed, left = said
        assert [destroyed, left] == ["nothing", "nothing"], said
        for text in refused:
            assert text.startswith("ShoalError: "), "\n".join(said)
            assert "forked" in text, said
            assert "the parent only" in text, said
