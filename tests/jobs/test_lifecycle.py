"""Joining, leaving and losing: what the others see, and that nothing hangs."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.testing import Cluster, Outcome, run_ranks

# A lost connection is known at once; this is for a slow machine.
PROMPT = 5.0


def outcomes(body: object, ranks: int, *arguments: object, servers: int = 0) -> list[Outcome]:
    with Cluster(ranks, servers=servers) as cluster:
        return cluster.start(body, *arguments).wait(60)  # type: ignore[arg-type]


def check_error(outcome: Outcome, error: type[Exception], *words: str) -> None:
    assert type(outcome.exception) is error, outcome.describe()
    for word in words:
        assert word in str(outcome.exception), outcome.describe()


def in_and_out(times: int) -> None:
    for _ in range(times):
        shoal.init()
        size = shoal.size()
        assert shoal.allreduce(1.0, op="sum") == size
        shoal.allreduce_(np.ones(50_000, np.float32), name="gradient")
        shoal.shutdown()
        assert not shoal.is_initialized()


@pytest.mark.parametrize("servers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_process_may_join_and_leave_twenty_times(servers: int) -> None:
    run_ranks(in_and_out, 3, 20, servers=servers)


def leave_one_by_one() -> None:
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    groups = [shoal.Group(range(first, size)) for first in range(size)]
    for group in groups[: rank + 1]:
        assert shoal.allreduce(1.0, op="sum", group=group) == group.size
        shoal.allreduce(np.ones(50_000, np.float32), group=group)
        shoal.allgather(np.ones((2000, 8)), group=group)
    shoal.shutdown()


@pytest.mark.parametrize("servers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_ranks_may_end_at_different_times(servers: int) -> None:
    run_ranks(leave_one_by_one, 4, servers=servers)


def need_one_that_has_left() -> None:
    shoal.init()
    if shoal.rank() != 1:
        with pytest.raises(shoal.PeerLost, match="left") as caught:
            shoal.allreduce(1.0, name="too late")
        assert caught.value.rank == 1
        assert "too late" in str(caught.value)
        others = shoal.Group([0, 2])
        assert shoal.allreduce(1.0, op="sum", group=others) == 2
    shoal.shutdown()


@pytest.mark.parametrize("servers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_an_operation_that_needs_a_rank_that_has_left_says_so(servers: int) -> None:
    run_ranks(need_one_that_has_left, 3, servers=servers)


def end_without_shutdown(code: int | None) -> None:
    shoal.init()
    shoal.allreduce(1.0)
    if code is not None:
        raise SystemExit(code)


@pytest.mark.parametrize("code", [None, 0])
@pytest.mark.parametrize("servers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_program_that_ends_well_need_not_call_shutdown(servers: int, code: int | None) -> None:
    for outcome in outcomes(end_without_shutdown, 3, code, servers=servers):
        assert outcome.exit_code == 0, outcome.describe()
        assert "Error" not in outcome.stderr


def ends_early_others_go_on() -> None:
    shoal.init()
    others = shoal.Group([0, 2])
    if shoal.rank() == 1:
        return
    time.sleep(0.5)
    for _ in range(20):
        shoal.allreduce(np.ones(50_000, np.float32), group=others)


def test_a_rank_that_ends_without_shutdown_serves_until_the_others_are_done() -> None:
    for outcome in outcomes(ends_early_others_go_on, 3):
        assert outcome.exit_code == 0, outcome.describe()


def kill_one() -> float:
    shoal.init()
    shoal.barrier()
    begin = time.monotonic()
    if shoal.rank() == 1:
        time.sleep(0.3)  # its server may still owe the others the end of the barrier
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        shoal.allreduce(np.ones(50_000, np.float32), name="gradient")
    finally:
        assert time.monotonic() - begin < PROMPT
    return 0.0


@pytest.mark.parametrize("servers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_every_rank_hears_of_one_that_was_killed(servers: int) -> None:
    for outcome in outcomes(kill_one, 3, servers=servers):
        if outcome.rank == 1:
            assert outcome.exit_code == -signal.SIGKILL
        else:
            check_error(outcome, shoal.PeerLost, "rank 1", "gradient")
            assert outcome.exception.rank == 1  # type: ignore[union-attr]


def fail_in_one(how: str) -> None:
    shoal.init()
    shoal.barrier()
    if shoal.rank() == 1:
        time.sleep(0.2)
        if how == "exception":
            raise ArithmeticError("the loss is infinite")
        if how == "exit":
            sys.exit(3)
        if how == "thread":
            # A thread that still runs must not keep the others waiting.
            threading.Thread(target=time.sleep, args=(30,)).start()
            raise ArithmeticError("the loss is infinite")
        raise SystemExit("no more data")
    begin = time.monotonic()
    try:
        shoal.allreduce(np.ones(50_000, np.float32), name="gradient")
    finally:
        assert time.monotonic() - begin < PROMPT


@pytest.mark.parametrize("servers", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exception", "ArithmeticError: the loss is infinite"),
        ("exit", "exit code 3"),
        ("text", "exit code 1"),
    ],
)
def test_every_rank_hears_why_one_failed(how: str, reason: str, servers: int) -> None:
    for outcome in outcomes(fail_in_one, 3, how, servers=servers):
        assert outcome.exit_code != 0
        if outcome.rank != 1:
            assert isinstance(outcome.exception, shoal.ShoalError), outcome.describe()
            check_error(outcome, type(outcome.exception), "rank 1", reason)


def test_the_others_hear_of_a_failure_while_its_threads_still_run() -> None:
    with Cluster(2) as cluster:
        job = cluster.start(fail_in_one, "thread")
        deadline = time.monotonic() + PROMPT + 10
        while job.processes[0].running() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not job.processes[0].running()
        assert job.processes[1].running()
        job.kill()


def caught_and_reported() -> None:
    shoal.init()
    with contextlib.suppress(SystemExit):
        sys.exit(5)
    sys.excepthook(ValueError, ValueError("only printed"), None)
    assert shoal.allreduce(1.0, op="sum") == shoal.size()


def test_an_exit_that_is_caught_is_no_failure() -> None:
    for outcome in outcomes(caught_and_reported, 2):
        assert outcome.exit_code == 0, outcome.describe()


def fork_and_be_killed(folder: str) -> None:
    shoal.init()
    shoal.barrier()
    if shoal.rank() == 1:
        child = os.fork()
        if child == 0:
            # Like a data loader's worker that its parent could not end.
            assert not shoal.is_initialized()
            Path(folder, "child").write_text(str(os.getpid()))
            time.sleep(20)
            os._exit(0)
        while not Path(folder, "child").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        shoal.allreduce(1.0, name="gradient")
    finally:
        assert time.monotonic() - begin < PROMPT


def test_a_forked_child_that_lives_on_does_not_hide_a_dead_rank(tmp_path: Path) -> None:
    ended = outcomes(fork_and_be_killed, 2, str(tmp_path), servers=1)
    check_error(ended[0], shoal.PeerLost, "rank 1")


def work_with_children_alive() -> None:
    children = []
    for _ in range(3):
        shoal.init()
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
        assert shoal.allreduce(1.0, op="sum") == shoal.size()
        shoal.shutdown()
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_jobs_come_and_go_while_forked_children_live() -> None:
    run_ranks(work_with_children_alive, 2, servers=1)


def children_that_end() -> None:
    shoal.init()
    child = os.fork()
    if child == 0:
        # A normal end of the child, exit handlers included, is none of the job's business.
        sys.exit(4)
    os.waitpid(child, 0)
    assert shoal.allreduce(1.0, op="sum") == shoal.size()
    shoal.shutdown()


def test_a_forked_child_that_ends_does_not_end_the_job() -> None:
    with Cluster(2) as cluster:
        for outcome in cluster.start(children_that_end).wait(60):
            assert outcome.exit_code == 0, outcome.describe()


def rank_in_a_child(failing: bool) -> None:
    shoal.init()
    shoal.barrier()
    if failing and shoal.rank() == 1:
        raise ArithmeticError("the loss is infinite")
    if failing:
        with pytest.raises(shoal.ShoalError, match="ArithmeticError: the loss is infinite"):
            shoal.allreduce(1.0)


def work_in_a_forked_child(failing: bool) -> None:
    shoal.init()
    shoal.shutdown()
    child = multiprocessing.get_context("fork").Process(target=rank_in_a_child, args=(failing,))
    child.start()
    child.join()
    assert child.exitcode == (1 if failing and os.environ["RANK"] == "1" else 0)


@pytest.mark.parametrize("failing", [False, True])
def test_a_rank_may_be_a_forked_child_of_multiprocessing(failing: bool) -> None:
    run_ranks(work_in_a_forked_child, 2, failing)


def interrupt_a_wait() -> None:
    shoal.init()
    if shoal.rank() == 1:
        shoal.barrier(name="interrupted")
        shoal.allreduce(1.0, name="awaited")
    else:
        handle = shoal.allreduce_async(1.0, name="awaited")
        begin = time.monotonic()
        with pytest.raises(shoal.Timeout, match="'awaited' on rank 0") as caught:
            handle.wait(timeout=0.2)
        assert isinstance(caught.value, TimeoutError)
        assert 0.1 < time.monotonic() - begin < 5.0
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        assert time.monotonic() - begin < 2.0
        assert not handle.done()
        shoal.barrier(name="interrupted")
        assert handle.wait() == 1.0
    shoal.shutdown()


def test_a_wait_can_be_limited_and_interrupted_and_taken_up_again() -> None:
    run_ranks(interrupt_a_wait, 2)


def wait_beside_a_busy_thread() -> None:
    shoal.init()
    if shoal.rank() == 1:
        time.sleep(0.5)
        shoal.allreduce(1.0)
    else:
        steps: list[float] = []
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.01):
                steps.append(time.monotonic())

        thread = threading.Thread(target=work)
        thread.start()
        shoal.allreduce(1.0)
        stop.set()
        thread.join()
        assert len(steps) > 10
    shoal.shutdown()


def test_other_threads_run_while_one_waits() -> None:
    run_ranks(wait_beside_a_busy_thread, 2)


def group_timeout() -> None:
    shoal.init()
    group = shoal.Group([0, 1], timeout=0.5)
    if shoal.rank() == 0:
        begin = time.monotonic()
        with pytest.raises(shoal.Timeout, match="rank 1"):
            shoal.allreduce(1.0, group=group, name="alone")
        assert 0.4 < time.monotonic() - begin < 5.0
    shoal.barrier()
    shoal.shutdown()


def test_an_operation_without_progress_fails_and_names_who_is_missing() -> None:
    run_ranks(group_timeout, 2, servers=1)
