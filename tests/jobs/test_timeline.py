"""Timelines: all ranks in one file on one clock, and who was waited for."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from lab_hosts import needs_lab
from lab_job import LabJob

import shoal
from shoal.ops.timeline import control
from shoal.testing import Cluster, Outcome, run_ranks
from shoal.testing.lab import Lab, LinkShape

PROGRAM = Path(__file__).with_name("timeline_programs.py")
SLOW = 0.05  # seconds

Event = dict[str, Any]


def read(path: Path) -> tuple[list[Event], dict[str, Any]]:
    document = json.loads(path.read_text())
    return document["traceEvents"], document["metadata"]


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def bars(events: list[Event], name: str, rank: int) -> list[Event]:
    return [event for event in events if (event["name"], event["pid"]) == (name, rank)]


def waits_of(events: list[Event], name: str, rank: int) -> list[Event]:
    """Of the operations of this name: the bars of their waits, which lie on their tracks and begin with them."""
    found = []
    for whole in bars(events, name, rank):
        place = (rank, whole["tid"], whole["ts"])
        found += [one for one in events if one.get("cat") == "wait" and (one["pid"], one["tid"], one["ts"]) == place]
    return found


def ranks_in(events: list[Event]) -> list[str]:
    return [event["args"]["name"] for event in events if event["name"] == "process_name"]


# --- All ranks in one file ---


def one_rank_is_slow(slow: int) -> None:
    shoal.init()
    pair = shoal.Group([1, 2]) if shoal.size() > 2 else None
    for _ in range(3):
        if shoal.rank() == slow:
            time.sleep(SLOW)
        shoal.allreduce_(np.ones(100_000, np.float32), name="large")
        shoal.allreduce(np.ones(10, np.float32))
        shoal.allgather(np.ones((3, 2)), name="gathered")
        if pair is not None and shoal.rank() in pair.ranks:
            shoal.barrier(name="of two", group=pair)
    shoal.shutdown()


@pytest.mark.parametrize(
    ("ranks", "nodes", "servers"),
    [
        (2, 1, 0),
        (4, 4, 2),
        pytest.param(4, 2, 1, marks=pytest.mark.slow),
        pytest.param(3, 3, 0, marks=pytest.mark.slow),
    ],
)
def test_all_ranks_are_in_one_file_which_names_the_slow_one(
    ranks: int, nodes: int, servers: int, tmp_path: Path
) -> None:
    slow = ranks - 1
    environment = {"SHOAL_TRACE": str(tmp_path / "new"), "SHOAL_JOB": "a/job"}
    run_ranks(one_rank_is_slow, ranks, slow, nodes=nodes, servers=servers, environment=environment)
    path = only_file(tmp_path / "new")
    assert path.name.startswith("a_job-20")
    events, metadata = read(path)
    names = metadata["ranks"]
    assert ranks_in(events) == names
    assert [name.partition(" (")[0] for name in names] == [f"rank {rank}" for rank in range(ranks)]
    for rank in range(ranks):
        for name, kind, many in [
            ("large", "ALLREDUCE", 3),
            ("allreduce", "ALLREDUCE", 3),
            ("gathered", "ALLGATHER", 3),
        ]:
            assert len(bars(events, name, rank)) == many
            waits = waits_of(events, name, rank)
            assert [wait["name"] for wait in waits] == [f"NEGOTIATE_{kind}"] * many
        assert len(bars(events, "of two", rank)) == (3 if ranks > 2 and rank in (1, 2) else 0)
        for wait in waits_of(events, "large", rank):
            assert wait["args"] == {"last to call": names[slow]}
            assert wait["dur"] == 0 if rank == slow else wait["dur"] > SLOW * 0.8e6
        for whole in bars(events, "large", rank):
            assert 0 <= whole["args"]["ns to first byte sent"] <= whole["dur"] * 1000
            assert whole["args"]["bytes"] == 400_000
    blamed = metadata["waited for"][names[slow]]
    assert blamed["operations"] >= 3
    assert blamed["seconds that the others waited, added up"] > 3 * (ranks - 1) * SLOW * 0.8
    # One machine, one clock.
    assert {clock["error at most, us"] for clock in metadata["clocks"].values()} == {0}


def calls_that_only_some_record() -> None:
    """Rank 0 joins while rank 1 goes on; then a call fails on rank 0 alone. Afterwards rank 1 is slow."""
    shoal.init()
    x = np.ones(10, np.float32)
    for _ in range(3 if shoal.rank() == 1 else 0):
        shoal.allreduce(x, name="x")
    shoal.join()
    if shoal.rank() == 0:
        with pytest.raises(TypeError):
            shoal.allreduce(np.array(["no number"]), name="x")
    else:
        with pytest.raises(shoal.ShoalError, match="failed on rank 0"):
            shoal.allreduce(x, name="x")
    for _ in range(2):
        if shoal.rank() == 1:
            time.sleep(SLOW)
        shoal.allreduce(x, name="x")
    shoal.shutdown()


@pytest.mark.parametrize(("nodes", "servers"), [(1, 0), (2, 1)])
def test_nobody_else_is_blamed_after_a_join_or_a_call_that_failed_on_one_rank(
    nodes: int, servers: int, tmp_path: Path
) -> None:
    run_ranks(calls_that_only_some_record, 2, nodes=nodes, servers=servers, environment={"SHOAL_TRACE": str(tmp_path)})
    events, metadata = read(only_file(tmp_path))
    assert [len(bars(events, "join", rank)) for rank in range(2)] == [1, 1]
    waits = waits_of(events, "x", 0)
    assert [wait["args"] for wait in waits] == [{"last to call": metadata["ranks"][1]}] * 2
    assert min(wait["dur"] for wait in waits) > SLOW * 0.8e6
    assert [bar["args"]["occurrence"] for bar in bars(events, "x", 0)] == [4, 5]
    # Rank 0 has recorded no call of the first four.
    assert len(bars(events, "x", 1)) == 6
    assert [wait["args"] for wait in waits_of(events, "x", 1) if wait["args"]] == [wait["args"] for wait in waits]


def drop_results_unheard(many: int, size: int) -> float:
    """How much more memory this process has than before it was given results that it does not ask for."""
    shoal.init()
    shoal.allgather(np.zeros(size, np.uint8))
    before = resident()
    for _ in range(many):
        handle = shoal.allgather_async(np.zeros(size, np.uint8), name="dropped")
        while not handle.done():
            time.sleep(0.001)
    grown = resident() - before
    shoal.shutdown()
    return grown


def resident() -> float:
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_recording_keeps_no_results(tmp_path: Path) -> None:
    many, size = 20, 4 << 20
    for grown in run_ranks(drop_results_unheard, 2, many, size, environment={"SHOAL_TRACE": str(tmp_path)}):
        assert grown < many * size
    events, _ = read(only_file(tmp_path))
    assert [len(bars(events, "dropped", rank)) for rank in range(2)] == [many] * 2


def leave_without_goodbye() -> None:
    shoal.init()
    shoal.allreduce(np.ones(10, np.float32), name="gradient")


def test_a_program_that_ends_without_shutdown_has_one_file_too(tmp_path: Path) -> None:
    run_ranks(leave_without_goodbye, 2, environment={"SHOAL_TRACE": str(tmp_path)})
    events, _ = read(only_file(tmp_path))
    assert [len(bars(events, "gradient", rank)) for rank in range(2)] == [1, 1]


def alone() -> None:
    shoal.init()
    shoal.allreduce(1.0, name="gradient")
    shoal.shutdown()


def test_a_job_of_one_rank_has_a_timeline(tmp_path: Path) -> None:
    run_ranks(alone, 1, environment={"SHOAL_TRACE": str(tmp_path)})
    events, _ = read(only_file(tmp_path))
    (wait,) = waits_of(events, "gradient", 0)
    assert wait["dur"] == 0


def refuse() -> None:
    with pytest.raises(shoal.ConfigurationError, match="SHOAL_TRACE"):
        shoal.init()


def test_every_rank_has_it_or_none(tmp_path: Path) -> None:
    with Cluster(2) as cluster:
        job = cluster.start(refuse, environment_of=lambda rank: {"SHOAL_TRACE": str(tmp_path) if rank else None})
        job.results()


# --- Clocks ---


def _has_time_namespaces() -> bool:
    command = ["unshare", "--time", "--monotonic=1", "--fork", "true"]
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False


needs_clocks = pytest.mark.skipif(
    not _has_time_namespaces(), reason="a time namespace needs root and Linux 5.6 (CAP_SYS_ADMIN)"
)
AHEAD = ["0", "50000", "3000"]  # seconds, by rank


def check_clocks(path: Path, outputs: list[str]) -> None:
    """``outputs``: of PROGRAM, by rank."""
    events, metadata = read(path)
    around = [json.loads(output.splitlines()[-1]) for output in outputs]
    clocks = list(metadata["clocks"].values())
    errors = [clock["error at most, us"] for clock in clocks]
    assert errors[0] == 0
    assert min(errors[1:]) > 0
    assert max(errors) < 100_000
    for clock, truth in zip(clocks, AHEAD, strict=True):
        for when in ("beginning", "end"):
            off = abs(clock[f"ahead of rank 0 at the {when}, us"] - int(truth) * 1e6)
            assert off <= clock["error at most, us"]
    # What the file says of one operation, against the clock that the three have without their namespaces.
    true = [[moment / 1000 - int(truth) * 1e6 for moment in one] for one, truth in zip(around, AHEAD, strict=True)]
    watched = [bars(events, "watched", rank)[0] for rank in range(3)]
    epoch = metadata["clock of rank 0 at 0, us"]
    for rank, bar in enumerate(watched):
        slack = errors[rank] + 1  # rounding
        assert true[rank][0] - epoch - slack <= bar["ts"]
        assert bar["ts"] + bar["dur"] <= true[rank][1] - epoch + slack
    for rank in (0, 2):
        (wait,) = waits_of(events, "watched", rank)
        assert wait["args"]["last to call"] == metadata["ranks"][1]


@needs_clocks
def test_clocks_that_differ_are_brought_together(tmp_path: Path) -> None:
    with Cluster(3, servers=1, environment={"SHOAL_TRACE": str(tmp_path)}) as cluster:
        job = cluster.start_script(PROGRAM, environment_of=lambda rank: {"AHEAD": AHEAD[rank]})
        outcomes = job.wait()
    assert [outcome.exit_code for outcome in outcomes] == [0] * 3, [outcome.describe() for outcome in outcomes]
    check_clocks(only_file(tmp_path), [outcome.stdout for outcome in outcomes])


class JobOfClocks(LabJob):
    """Whose ranks run PROGRAM, each with a clock of its own."""

    def _start(self, index: int, arguments: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        if index < self.ranks:
            arguments, environment = [str(PROGRAM)], {**environment, "AHEAD": AHEAD[index]}
        return super()._start(index, arguments, environment)


@pytest.mark.slow
@needs_lab
@needs_clocks
@pytest.mark.parametrize("servers", [0, 2])
def test_clocks_of_hosts_are_brought_together(servers: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "output").mkdir()
    # One link takes much longer in one direction.
    shapes = {1: LinkShape(rate=50e6, receive_rate=2e6)}
    with Lab(3 + servers, LinkShape(rate=200e6), shapes=shapes) as lab:
        job = JobOfClocks(lab, 3, "", {"SHOAL_TRACE": str(trace)}, tmp_path / "output")
        assert job.wait(60) == [0] * 3, job.everything()
        check_clocks(only_file(trace), [job.output(rank) for rank in range(3)])


# --- Losses ---


def outcomes_of(
    body: Callable[..., None], ranks: int, folder: Path, *arguments: Any, servers: int = 0, timeout: float = 60.0
) -> list[Outcome]:
    environment = {
        "SHOAL_TRACE": str(folder),
        "SHOAL_TIMEOUT": str(timeout),
        "SHOAL_COLOCATED": "never" if servers else "auto",
    }
    with Cluster(ranks, servers=servers, environment=environment) as cluster:
        return cluster.start(body, *arguments).wait()


def lose_rank_2(goes_on: bool) -> None:
    shoal.init()
    shoal.allreduce(np.ones(10, np.float32), name="all")
    if shoal.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        shoal.allreduce(np.ones(10, np.float32), name="without rank 2")
    except shoal.PeerLost:
        if not goes_on:
            raise
    shoal.allreduce(np.ones(10, np.float32), name="of two", group=shoal.Group([0, 1]))
    shoal.shutdown()


def test_those_who_go_on_without_a_lost_rank_are_in_one_file_which_says_so(tmp_path: Path) -> None:
    ends = outcomes_of(lose_rank_2, 3, tmp_path, True, servers=1)
    assert [end.exit_code for end in ends] == [0, 0, -signal.SIGKILL], [end.describe() for end in ends]
    events, metadata = read(only_file(tmp_path))
    assert ranks_in(events) == metadata["ranks"]
    assert len(metadata["ranks"]) == 2
    ((lost, why),) = metadata["missing"].items()
    assert lost.startswith("rank 2 (")
    assert "lost" in why
    for rank in range(2):
        assert len(bars(events, "all", rank)) == len(bars(events, "of two", rank)) == 1
        (failed,) = bars(events, "without rank 2", rank)
        assert failed["args"]["status"].startswith("failed")
        # Rank 2's call is not known, so nobody is blamed for this one.
        assert not [wait for wait in waits_of(events, "all", rank) if wait["args"]]


def test_ranks_that_end_by_a_loss_have_files_of_their_own_which_say_so(tmp_path: Path) -> None:
    ends = outcomes_of(lose_rank_2, 3, tmp_path, False)
    assert [end.exit_code for end in ends] == [1, 1, -signal.SIGKILL]
    files = sorted(tmp_path.iterdir())
    assert [file.stem.rpartition("-")[2] for file in files] == ["rank0", "rank1"]
    for rank, file in enumerate(files):
        events, metadata = read(file)
        assert {event["pid"] for event in events if event["ph"] != "M"} == {rank}
        assert len(bars(events, "all", rank)) == 1
        assert [name.partition(" (")[0] for name in metadata["missing"]] == [
            f"rank {other}" for other in range(3) if other != rank
        ]
        assert all(metadata["missing"].values())


def lose_rank_2_unnoticed(folder: str) -> None:
    """Rank 1 does not know of the loss yet when it comes to stop the timeline."""
    shoal.init()
    shoal.start_timeline(Path(folder) / "all.json")
    shoal.allreduce(np.ones(10, np.float32), name="all")
    if shoal.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(shoal.PeerLost):
        shoal.allreduce(np.ones(10, np.float32), name="without rank 2")
    missing = control._missing
    unheard: list[dict[int, shoal.ShoalError]] = [{}] if shoal.rank() == 1 else []
    began = time.monotonic()
    with mock.patch.object(control, "_missing", lambda session: unheard.pop() if unheard else missing(session)):
        shoal.stop_timeline()
    assert time.monotonic() - began < 20.0
    shoal.shutdown()


def test_ranks_that_hear_of_a_loss_one_after_the_other_come_together(tmp_path: Path) -> None:
    with Cluster(3, servers=1, environment={"SHOAL_COLOCATED": "never", "SHOAL_TIMEOUT": "60"}) as cluster:
        ends = cluster.start(lose_rank_2_unnoticed, str(tmp_path)).wait()
    assert [end.exit_code for end in ends] == [0, 0, -signal.SIGKILL], [end.describe() for end in ends]
    events, metadata = read(only_file(tmp_path))
    assert [name.partition(" (")[0] for name in metadata["missing"]] == ["rank 2"]
    assert [len(bars(events, "all", rank)) for rank in range(3)] == [1, 1, 0]


def leave_one_behind() -> None:
    shoal.init()
    shoal.allreduce(np.ones(10, np.float32), name="gradient")
    if shoal.rank() == 1:
        time.sleep(2.0)
        os._exit(0)
    began = time.monotonic()
    with pytest.raises(shoal.Timeout):
        shoal.stop_timeline()
    assert time.monotonic() - began < 10.0
    shoal.shutdown()


def test_who_does_not_come_keeps_nobody(tmp_path: Path) -> None:
    ends = outcomes_of(leave_one_behind, 2, tmp_path, timeout=0.5)
    assert ends[0].exit_code == 0, ends[0].describe()
    events, metadata = read(only_file(tmp_path))
    assert len(bars(events, "gradient", 0)) == 1
    assert "rank 1" in next(iter(metadata["missing"].values()))


# --- While the job runs ---


def start_and_stop(folder: str) -> None:
    shoal.init()
    rank = shoal.rank()
    shoal.allreduce(np.ones(10, np.float32), name="too early")
    for number in range(2):
        path = Path(folder) / f"{number}.json"
        shoal.start_timeline(path if rank == 0 else "", mark_cycles=number == 0)
        if rank == 1:
            time.sleep(SLOW)
        shoal.allreduce(np.ones(10, np.float32), name=f"allreduce.{number}")
        if rank == 0:
            check_what_is_there_already(path, number)
        shoal.stop_timeline()
        shoal.allreduce(np.ones(10, np.float32), name="too late")
    shoal.shutdown()


def check_what_is_there_already(path: Path, number: int) -> None:
    deadline = time.monotonic() + 10.0
    while f'"allreduce.{number}"' not in (text := path.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.01)
    time.sleep(0.05)
    events = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    (wait,) = waits_of(events, f"allreduce.{number}", 0)
    assert wait["name"] == "NEGOTIATE_ALLREDUCE"
    assert wait["dur"] > SLOW * 0.8e6
    assert len(bars(events, "CYCLE_START", 0)) == (1 if number == 0 else 0)
    assert {event["pid"] for event in events} == {0}


@pytest.mark.parametrize(("nodes", "servers"), [(1, 0), (2, 1)])
def test_a_timeline_may_start_and_stop_twice_and_be_read_meanwhile(nodes: int, servers: int, tmp_path: Path) -> None:
    run_ranks(start_and_stop, 2, str(tmp_path), nodes=nodes, servers=servers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json"]
    for number in range(2):
        events, _ = read(tmp_path / f"{number}.json")
        drawn = {event["name"] for event in events if event.get("cat") == "operation"}
        assert drawn == {f"allreduce.{number}"}
        (wait,) = waits_of(events, f"allreduce.{number}", 0)
        assert wait["args"]["last to call"].startswith("rank 1 (")
        for rank in range(2):
            assert len(bars(events, "CYCLE_START", rank)) == (1 if number == 0 else 0)


def go_elsewhere(folder: str) -> None:
    os.chdir(folder)
    shoal.init()
    shoal.start_timeline("here.json" if shoal.rank() == 0 else "")
    shoal.allreduce(1.0, name="gradient")
    os.chdir("/")
    shoal.stop_timeline()
    shoal.shutdown()


def test_a_file_stays_where_the_program_was_when_it_named_it(tmp_path: Path) -> None:
    run_ranks(go_elsewhere, 2, str(tmp_path))
    events, _ = read(tmp_path / "here.json")
    assert [len(bars(events, "gradient", rank)) for rank in range(2)] == [1, 1]


def call_wrongly(folder: str) -> None:
    with pytest.raises(shoal.ShoalError, match=r"call shoal\.init"):
        shoal.start_timeline(Path(folder) / "early.json")
    shoal.init()
    with pytest.raises(shoal.ShoalError, match="start_timeline"):
        shoal.stop_timeline()
    # Only rank 0's counts, and all ranks hear of it.
    bad = Path("/proc/there/is/no/such") if shoal.rank() == 0 else Path(folder) / "good.json"
    with pytest.raises(shoal.ConfigurationError, match=r"rank 0 \(.*cannot write a timeline to '/proc/there"):
        shoal.start_timeline(bad)
    path = Path(folder) / "good.json"
    shoal.start_timeline(path)
    with pytest.raises(shoal.ShoalError, match="already"):
        shoal.start_timeline(path)
    shoal.allreduce(1.0, name="gradient")
    # Without a word: shutdown writes it.
    shoal.shutdown()


def test_wrong_calls_are_errors_on_every_rank_and_shutdown_ends_a_timeline(tmp_path: Path) -> None:
    run_ranks(call_wrongly, 2, str(tmp_path))
    events, _ = read(only_file(tmp_path))
    assert [len(bars(events, "gradient", rank)) for rank in range(2)] == [1, 1]


def keep_what_cannot_be_written(folder: str) -> None:
    shoal.init()
    path = Path(folder) / "gone" / "timeline.json"
    shoal.start_timeline(path)
    shoal.allreduce(1.0, name="gradient")
    if shoal.rank() == 0:
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("no folder any more")
    logging.disable()
    with pytest.raises(shoal.ShoalError, match=r"rank 0 \(.*could not write the timeline"):
        shoal.stop_timeline()
    assert shoal.allreduce(1.0, op="sum") == 2
    shoal.shutdown()


def test_a_file_that_cannot_be_written_in_the_end_is_an_error_on_every_rank(tmp_path: Path) -> None:
    run_ranks(keep_what_cannot_be_written, 2, str(tmp_path))


# --- Much of it ---


def record_a_million(folder: str, many: int) -> tuple[float, float, int]:
    from resource import RUSAGE_SELF, getrusage

    from shoal.job import trace

    shoal.init()
    shoal.start_timeline(Path(folder) / "long.json")
    before = getrusage(RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    for index in range(many):
        trace.instant(f"event {index % 1000}")
    seconds = time.monotonic() - began
    grown = (getrusage(RUSAGE_SELF).ru_maxrss - before) * 1024
    began = time.monotonic()
    shoal.stop_timeline()
    stopping = time.monotonic() - began
    shoal.shutdown()
    return seconds, stopping, grown


@pytest.mark.slow
def test_a_million_events_of_each_rank_come_together(tmp_path: Path) -> None:
    many = 1_000_000
    for _, stopping, grown in run_ranks(record_a_million, 2, str(tmp_path), many + 10, timeout=300):
        assert stopping < 120
        assert grown < 200e6
    path = only_file(tmp_path)
    found = [0, 0]
    with path.open() as file:
        for line in file:
            if '"cat":"program"' in line:
                found[1 if '"pid":1' in line else 0] += 1
        assert found == [many, many]
    with path.open("rb") as end:
        end.seek(-4000, os.SEEK_END)
        tail = end.read().decode()
    metadata = json.loads(tail[tail.rindex('"metadata":') + len('"metadata":') :].rstrip()[:-1])
    assert list(metadata["events dropped"].values()) == [10, 10]
