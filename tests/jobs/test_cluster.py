"""``shoal.testing``: what it brings back from the ranks, and that it ends what it started."""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import PeerLost
from shoal.testing import Cluster, Nursery, RankFailed, TimeLimitReached, ranks_from, run_ranks


@pytest.fixture(params=["from a nursery", "new processes"], autouse=True)
def _where_ranks_come_from(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[None]:
    with ranks_from(nursery if request.param == "from a nursery" else None):
        yield


class AskewError(Exception):
    """An exception whose parameters are not its ``args``, so that it cannot be pickled."""

    def __init__(self, rank: int, host: str) -> None:
        super().__init__(f"rank {rank} on {host}")


def rank_plus(number: int) -> int:
    return int(os.environ["RANK"]) + number


def fail_on_rank_one() -> str:
    if os.environ["RANK"] == "1":
        print("about to fail")
        raise PeerLost("gone", 3, "there")
    return os.environ["SHOAL_JOB"]


def fail_askew() -> None:
    raise AskewError(1, "here")


def sleep_with_a_child() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_values_come_back_by_rank() -> None:
    assert run_ranks(rank_plus, 3, 10) == [10, 11, 12]


def test_an_exception_comes_back_as_what_it_was_and_leaves_the_others_alone() -> None:
    with Cluster(2, environment={"SHOAL_JOB": "mine"}) as cluster:
        well, failed = cluster.start(fail_on_rank_one).wait()
        assert (well.exit_code, well.value, well.exception) == (0, "mine", None)
        assert failed.exit_code == 1
        assert isinstance(failed.exception, PeerLost)
        assert (failed.exception.rank, failed.exception.host) == (3, "there")
        assert failed.stdout == "about to fail\n"
        with pytest.raises(RankFailed, match=r"(?s)rank 1 failed with exit code 1\nPeerLost: gone.*about to fail"):
            cluster.start(fail_on_rank_one).results()


def test_an_exception_that_cannot_travel_is_named() -> None:
    with Cluster(1) as cluster:
        (failed,) = cluster.start(fail_askew).wait()
        assert str(failed.exception) == "AskewError: rank 1 on here"


def test_the_time_limit_shows_where_ranks_stand_and_leaves_nothing() -> None:
    with Cluster(2) as cluster:
        job = cluster.start(sleep_with_a_child)
        with pytest.raises(
            TimeLimitReached, match=r"(?s)ranks \[0, 1\] were still running.*in sleep_with_a_child"
        ) as raised:
            job.wait(timeout=3)
    children = [int(outcome.stdout) for outcome in raised.value.outcomes]
    assert not any(map(is_running, children))


def test_a_rank_can_be_killed() -> None:
    with Cluster(2) as cluster:
        job = cluster.start(sleep_with_a_child)
        for rank in range(2):
            job.signal(rank, signal.SIGKILL)
        assert [outcome.exit_code for outcome in job.wait()] == [-signal.SIGKILL] * 2


def test_each_rank_may_have_an_environment_of_its_own() -> None:
    with Cluster(2) as cluster:
        job = cluster.start(rank_plus, 0, environment_of=lambda rank: {"RANK": str(rank + 5)})
        assert job.results() == [5, 6]


def test_functions_that_cannot_travel_are_refused() -> None:
    with pytest.raises(TypeError, match="top level of a module"):
        run_ranks(lambda: 1, 2)


def what_differs_between_processes() -> tuple[int, float, int, str | None]:
    return hash("seed"), float(np.random.random()), os.getsid(0) - os.getpid(), os.environ.get("ADDED")


def test_ranks_differ_as_processes_do() -> None:
    with Cluster(4) as cluster:
        job = cluster.start(
            what_differs_between_processes, environment_of=lambda rank: {"ADDED": "here"} if rank == 2 else {}
        )
        hashes, drawn, sessions, added = zip(*job.results(), strict=True)
    assert len(set(hashes)) > 1
    assert len(set(drawn)) == 4
    assert set(sessions) == {0}
    assert added == (None, None, "here", None)


def seed_of_hashes() -> tuple[int, int]:
    return sys.flags.hash_randomization, hash("seed")


def test_what_is_read_when_a_process_starts_is_that_of_the_rank() -> None:
    (randomized, first), (_, second) = run_ranks(seed_of_hashes, 2, environment={"PYTHONHASHSEED": "7"})
    assert (randomized, first) == (1, second)


def leave_a_note_at_exit(path: str) -> None:
    atexit.register(Path(path + os.environ["RANK"]).touch)


def test_the_interpreter_of_a_rank_ends_as_any(tmp_path: Path) -> None:
    run_ranks(leave_a_note_at_exit, 2, str(tmp_path / "rank"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0", "rank1"]


_LEFT_BEHIND = r"""
import os, sys, time
from shoal.testing import Cluster, Nursery, ranks_from
sys.path.insert(0, sys.argv[1])
import test_cluster
environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
with ranks_from(Nursery(["numpy"], environment) if sys.argv[2] == "from a nursery" else None):
    cluster = Cluster(2)
    job = cluster.start(test_cluster.sleep_with_a_child)
    while any(process.running() for process in job.processes) and not (job.stdout(0).endswith("\n") and job.stdout(1).endswith("\n")):
        time.sleep(0.01)
    numbers = [*(process.pid for process in job.processes), int(job.stdout(0)), int(job.stdout(1))]
    print(*numbers, flush=True)
    time.sleep(600)
"""


def test_nothing_outlives_who_started_it(request: pytest.FixtureRequest) -> None:
    where = request.node.callspec.params["_where_ranks_come_from"]
    command = [sys.executable, "-c", _LEFT_BEHIND, str(Path(__file__).parent), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout is not None
            numbers = [int(number) for number in starter.stdout.readline().split()]
            assert len(numbers) == 4
            assert all(map(is_running, numbers))
        finally:
            starter.kill()
    ends = time.monotonic() + 10
    while any(map(is_running, numbers)) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not any(map(is_running, numbers))
