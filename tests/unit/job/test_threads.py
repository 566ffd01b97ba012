"""Which threads that never called Shoal might."""

import _thread
import multiprocessing
import threading
from multiprocessing.managers import Server
from multiprocessing.pool import ThreadPool
from multiprocessing.queues import Queue
from typing import Any

import pytest
from torch.utils.data._utils.pin_memory import _pin_memory_loop

from shoal.job import threads


def strangers_of(start: Any) -> int:
    """How many more there are once it has started threads; it returns what ends them."""
    before = threads.count_strangers()
    end = start()
    try:
        return threads.count_strangers() - before
    finally:
        end()


def thread_of(target: Any) -> threading.Thread:
    return threading.Thread(target=target, args=())


def start_thread() -> Any:
    ends = threading.Event()
    thread = threading.Thread(target=lambda: ends.wait(10))
    thread.start()
    return lambda: (ends.set(), thread.join())


def start_low_thread() -> Any:
    begun, ends = threading.Event(), threading.Event()
    _thread.start_new_thread(lambda: (begun.set(), ends.wait(10)), ())
    assert begun.wait(10)
    return ends.set


def start_thread_pool() -> Any:
    pool = ThreadPool(2)
    return lambda: (pool.terminate(), pool.join())


def start_queue() -> Any:
    queue: Queue[int] = multiprocessing.get_context("spawn").Queue()
    queue.put(1)  # which starts its thread
    return lambda: (queue.get(), queue.close(), queue.join_thread())


def test_threads_of_the_program_and_of_pools_count_and_those_of_queues_do_not() -> None:
    assert strangers_of(start_thread) == 1
    assert strangers_of(start_low_thread) == 1
    assert strangers_of(start_thread_pool) >= 2
    assert strangers_of(start_queue) == 0


@pytest.mark.parametrize(
    ("target", "harmless"),
    [
        (Queue._feed, True),  # type: ignore[attr-defined]
        (_pin_memory_loop, True),
        (multiprocessing.pool.worker, False),  # type: ignore[attr-defined]
        (Server.serve_client, False),
    ],
)
def test_what_runs_functions_of_the_programs_is_known_by_its_module(target: Any, harmless: bool) -> None:
    assert threads._is_harmless(thread_of(target)) is harmless
