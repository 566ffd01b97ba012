"""``shoal.testing``: what it brings back from the ranks, and that it ends what it started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.errors import PeerLost
from shoal.testing import Cluster, RankFailed, TimeLimitReached, run_ranks


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
