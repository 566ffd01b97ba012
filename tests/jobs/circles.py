"""Programs of ranks that come to wait for each other in a circle, and of others that only look as if they did."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import shoal
from shoal import _native


def said(call: Any) -> tuple[str, float]:
    """What the error of the call says, and after how many seconds it came."""
    begin = time.monotonic()
    try:
        call()
    except (shoal.ShoalError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return "nothing", time.monotonic() - begin


def skipped_batch() -> tuple[str, float]:
    """Rank 1 leaves out a step."""
    shoal.init()
    for step in range(3):
        shoal.allreduce(np.ones(10, np.float32), name=f"gradient{step}")
    if shoal.rank() == 0:
        found = said(lambda: shoal.allreduce(np.ones(100_000, np.float32), name="gradient3"))
    else:
        found = said(lambda: shoal.barrier(name="epoch"))
    # What cannot be complete has ended everywhere, and all else goes on.
    assert shoal.allreduce(1.0, op="sum", name="after") == shoal.size()
    shoal.shutdown()
    return found


def ring_of_groups() -> tuple[str, float]:
    """Each of three ranks waits for the next one, in a group of the two."""
    shoal.init()
    groups = [shoal.Group([rank, (rank + 1) % 3]) for rank in range(3)]
    found = said(lambda: shoal.barrier(group=groups[shoal.rank()], name="mine"))
    shoal.barrier()
    shoal.shutdown()
    return found


def skipped_in_c10d() -> tuple[str, float]:
    """Rank 1 leaves out a step on its way to the collectives of a group that it has for itself and rank 0.

    A message is to come that nobody waits for: it keeps threads of Shoal's own busy, and no circle from being seen.
    """
    dist.init_process_group("shoal", timeout=timedelta(minutes=5))
    other = dist.new_group(backend="shoal")
    dist.all_reduce(torch.ones(10))
    message = dist.irecv(torch.empty(1), 1 - dist.get_rank())
    assert message is not None
    assert not message.is_completed()
    if dist.get_rank() == 0:
        found = said(lambda: dist.all_reduce(torch.ones(100_000)))
    else:
        found = said(lambda: dist.all_reduce(torch.ones(10), group=other))
    time.sleep(2)  # who leaves at once would be what the other one hears of
    dist.destroy_process_group()
    return found


def skipped_in_the_wrapper() -> tuple[str, float]:
    """Rank 1 skips a batch, and comes to the barrier at the end of the epoch."""
    shoal.init()
    from shoal.torch import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))

    def train() -> None:
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()

    train()
    train()
    if shoal.rank() == 0:
        found = said(lambda: (train(), shoal.barrier(name="epoch")))
    else:
        found = said(lambda: shoal.barrier(name="epoch"))
    shoal.shutdown()
    return found


def late(seconds: float) -> None:
    """All but one wait; that one computes, then comes."""
    shoal.init()
    shoal.barrier()
    if shoal.rank() == 1:
        time.sleep(seconds)
    shoal.barrier(name="late")
    shoal.shutdown()


def another_thread_calls(seconds: float) -> None:
    """Two ranks wait for each other in their main threads; threads of theirs that have called before call what is missing."""
    shoal.init()
    first, second = ("a", "b") if shoal.rank() == 0 else ("b", "a")

    def later() -> None:
        shoal.barrier(name="begun")
        time.sleep(seconds)
        shoal.barrier(name=second)

    thread = threading.Thread(target=later)
    thread.start()
    shoal.barrier(name=first)
    thread.join()
    shoal.shutdown()


def a_new_thread_calls(seconds: float) -> None:
    """The same, by threads that had never called anything."""

    def start(later: Callable[[], None]) -> Callable[[], None]:
        thread = threading.Thread(target=later)
        thread.start()
        return thread.join

    call_by_another(start, seconds)


def call_by_another(start: Callable[[Callable[[], None]], Callable[[], None]], seconds: float) -> None:
    """Two ranks wait for each other in their main threads; what is missing is called by what ``start`` starts, which returns
    how to wait for its end."""
    shoal.init()
    first, second = ("a", "b") if shoal.rank() == 0 else ("b", "a")

    def later() -> None:
        time.sleep(seconds)
        shoal.barrier(name=second)

    join = start(later)
    shoal.barrier(name=first)
    join()
    shoal.shutdown()


def a_callback_calls(seconds: float) -> None:
    """Rank 0 waits in its main thread for rank 1, which waits there for its callback, which takes as long, and waits for rank 0's."""
    dist.init_process_group("shoal")
    other = dist.new_group(backend="shoal")
    rank = dist.get_rank()

    def follow(_: Any) -> torch.Tensor:
        time.sleep(seconds * rank)
        result = torch.ones(1)
        dist.all_reduce(result)
        return result

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(follow)
    for of_main_thread in range(2):
        if of_main_thread == rank:
            value = torch.ones(1)
            dist.all_reduce(value, group=other)
            assert value.item() == 2.0
        else:
            assert future.wait().item() == 2.0
    dist.destroy_process_group()


def a_callback_of_a_message_calls(seconds: float) -> None:
    """Rank 0 waits for rank 1, which waits for what rank 0's callback calls once a message of rank 2 has come, which is late."""
    shoal.init()
    dist.init_process_group("shoal")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 2:
        time.sleep(seconds)
        dist.send(torch.ones(1), 0)
    else:
        pair = shoal.Group([0, 1], name="pair")
        if rank == 0:
            message = dist.irecv(torch.empty(1), 2)
            assert message is not None
            called = message.get_future().then(lambda _: shoal.barrier(name="b", group=pair))
            shoal.barrier(name="a", group=pair)
            called.wait()
        else:
            shoal.barrier(name="b", group=pair)
            shoal.barrier(name="a", group=pair)
    dist.destroy_process_group()
    shoal.shutdown()


def waits_for_a_message() -> bool:
    """Whether a thread counts as one that calls Shoal while it waits for a message and has called nothing else."""
    dist.init_process_group("shoal")
    counts = True
    if dist.get_rank() == 0:
        thread = threading.Thread(target=dist.recv, args=(torch.empty(1), 1))
        thread.start()
        deadline = time.monotonic() + 5
        while not (counts := thread.ident in _native.caller_threads()) and time.monotonic() < deadline:
            time.sleep(0.01)
    dist.barrier()
    if dist.get_rank() == 0:
        thread.join()
    else:
        dist.send(torch.ones(1), 0)
    dist.destroy_process_group()
    return counts


def waits_with_a_limit(seconds: float) -> None:
    """The same, by the threads themselves, which look up now and then."""
    shoal.init()
    first, second = ("a", "b") if shoal.rank() == 0 else ("b", "a")
    handle = shoal.barrier_async(name=first)
    with contextlib.suppress(shoal.Timeout):
        handle.wait(seconds)
    shoal.barrier(name=second)
    handle.wait()
    shoal.shutdown()


def a_thread_of_a_pool_calls(seconds: float) -> None:
    """The same, by threads of a pool that had never called anything."""
    with ThreadPool(1) as pool:
        call_by_another(lambda later: pool.apply_async(later).get, seconds)


def a_handler_calls(seconds: float) -> None:
    """A signal comes to both ranks, of which one waits: its handler writes something for so long, then meets the other's."""
    shoal.init()
    rank = shoal.rank()

    def checkpoint(*_: Any) -> None:
        if rank == 0:
            time.sleep(seconds)
        shoal.barrier(name="checkpoint")

    signal.signal(signal.SIGUSR1, checkpoint)
    shoal.barrier()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    if rank == 1:
        time.sleep(1)
    shoal.allreduce(1.0, name="gradient")
    shoal.shutdown()


def a_thread_that_a_handler_starts_calls(seconds: float) -> None:
    """Two ranks wait for each other; what is missing is called by a thread that a signal's handler starts in the middle of it."""

    def start(later: Callable[[], None]) -> Callable[[], None]:
        threads = [threading.Thread(target=later)]
        return call_by_handler(lambda: threads[0].start(), lambda: threads[0].join())

    call_by_another(start, seconds)


def an_alarm_that_a_handler_sets_calls(seconds: float) -> None:
    """The same, by the handler of an alarm that the first handler sets."""

    def start(later: Callable[[], None]) -> Callable[[], None]:
        signal.signal(signal.SIGALRM, lambda *_: later())
        return call_by_handler(lambda: signal.setitimer(signal.ITIMER_REAL, seconds), lambda: None)

    call_by_another(start, seconds)


def call_by_handler(call: Callable[[], Any], join: Callable[[], None]) -> Callable[[], None]:
    """It is called 1.5 s from now, when this rank has waited for some time and no new thread of its is known."""
    signal.signal(signal.SIGUSR1, lambda *_: call())
    killer = subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -USR1 {os.getpid()}"])

    def wait() -> None:
        killer.wait()
        join()

    return wait


def tries_with_a_timeout(seconds: float) -> None:
    """Rank 0 tries whether the other one comes, and goes on when it does not; that one waits for what comes next."""
    shoal.init()
    tried = shoal.Group([0, 1], name="tried", timeout=seconds)
    shoal.barrier()
    if shoal.rank() == 0:
        with contextlib.suppress(shoal.Timeout):
            shoal.barrier(name="optional", group=tried)
    shoal.barrier(name="next")
    shoal.shutdown()


def many_callbacks_are_to_come(seconds: float) -> None:
    """Rank 0 has 10,000 operations with callbacks open, more than could be looked through one by one for each; the other is late."""
    shoal.init()
    shoal.barrier()
    if shoal.rank() == 1:
        time.sleep(seconds)
    begin = time.monotonic()
    handles = [shoal.allreduce_async(np.ones(4, np.float32), name=f"{number}") for number in range(10_000)]
    for handle in handles:
        handle.call_when_done(lambda: None)
    handles[-1].wait()
    if shoal.rank() == 1:
        assert time.monotonic() - begin < 20
    for handle in handles:
        handle.wait()
    shoal.shutdown()
