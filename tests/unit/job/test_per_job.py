"""What is kept for a job is made once, and goes with the job's session."""

import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import shoal
from shoal.gradients.named_operations import NamedOperations, group_of_copies
from shoal.job import runtime
from shoal.job.per_job import Kept, PerJob


def session() -> Any:
    return SimpleNamespace(kept=Kept())


def test_each_job_has_a_value_of_its_own() -> None:
    first, second = session(), session()
    one: PerJob[list[int]] = PerJob(lambda _: [])
    other: PerJob[list[int]] = PerJob(lambda _: [])
    assert one.of(first) is one.of(first)
    assert len({id(each.of(job)) for each in (one, other) for job in (first, second)}) == 4


def test_threads_that_ask_at_the_same_time_get_the_same() -> None:
    made = []

    def make(_: Any) -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    value, job, found = PerJob(make), session(), list[object]()
    threads = [threading.Thread(target=lambda: found.append(value.of(job))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == made * 4


def test_a_job_that_was_left_goes_with_the_groups_that_were_made_in_it(gone: Callable[[Any], bool]) -> None:
    shoal.init()
    shoal.allreduce(1.0)  # makes the group of all ranks
    NamedOperations(shoal.Group([0]))
    NamedOperations(group_of_copies((0,)), of_copy=True)
    left = weakref.ref(runtime.current())
    shoal.shutdown()
    assert gone(left)
