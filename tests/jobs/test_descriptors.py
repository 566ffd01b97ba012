"""Descriptors run out: whoever needs more than it may have says so at once, with both numbers, and servers go on with other jobs."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

JOIN = """
import os, resource, shoal, time
before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
began = time.monotonic()
try:
    shoal.init()
except shoal.ShoalError as error:
    print("refused", f"{time.monotonic() - began:.1f}", type(error).__name__, error)
else:
    assert shoal.allreduce(1.0, op="sum") == shoal.size()
    first, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shoal.shutdown()
    shoal.init()
    second, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shoal.shutdown()
    while len(os.listdir("/proc/self/fd")) > 60:  # the job is still ending
        time.sleep(0.01)
    shoal.init()
    print("joined", before, first, second, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""

# A rank that keeps all its descriptors to itself once the job has begun, and first calls rank 1 then.
TAKE_ALL = """
import contextlib, numpy.ma, os, shoal
shoal.init()
taken = []
if shoal.rank() == 0:
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
try:
    shoal.alltoall(numpy.ones(1 << 20))
except shoal.ShoalError as error:
    for descriptor in taken:
        os.close(descriptor)
    print("failed", type(error).__name__, error)
"""


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return {**inherited, **variables}


def run(program: str, *, limit: str, only_rank: int | None = None, **variables: str) -> tuple[list[str], str]:
    """What two ranks on two nodes print, each with its number before it, and stderr. ``limit``: the words after ``ulimit``."""
    of_whom = "true" if only_rank is None else f"[ $RANK = {only_rank} ]"
    shell = f'{of_whom} && ulimit {limit}; exec "$0" -c "$1"'
    words = [sys.executable, "-m", "shoal.cli", "run", "-n", "2", "--nodes", "2", "bash", "-c", shell]
    done = subprocess.run(
        [*words, sys.executable, program], env=environment(**variables), capture_output=True, text=True, timeout=60
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("limit", ["-Sn 64", "-n 64"], ids=["soft", "hard"])
def test_a_launcher_raises_its_own_limit_alone(tmp_path: Path, limit: str) -> None:
    """Of ranks of another host, which here is this machine behind an ssh of the test's."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')
    ssh.chmod(0o755)
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    run = [sys.executable, "-m", "shoal.cli", "run", "-n", "16", "-H", "me@other:16", sys.executable, "-c", program]
    done = subprocess.run(
        ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *run],
        env=environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if limit == "-n 64":
        assert (done.returncode, done.stdout) == (1, "")
        said = r"shoal run: shoal run needs \d+ descriptors for this job \(.*64 for output of processes on other hosts.*ulimit -n.*\n"
        assert re.fullmatch(said, done.stderr), done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == sorted(f"[{rank}] 64" for rank in range(16))


def test_a_rank_that_may_not_have_enough_is_named_at_once_on_every_rank() -> None:
    lines, err = run(JOIN, limit="-n 100", only_rank=1, SHOAL_SOCKETS="64")
    assert len(lines) == 2, (lines, err)
    for line in lines:
        found = re.fullmatch(
            r"\[\d\] refused (\S+) ConfigurationError rank 1 \(\S+\) needs (\d+) descriptors for this job \(64 for connections "
            r"to servers, 64 for .*; (\d+) are open already\), and may have 100, its hard limit: .*ulimit -n.*SHOAL_SOCKETS.*",
            line,
        )
        assert found, line
        assert float(found[1]) < 5
        assert 128 < int(found[2]) < 200


def test_the_soft_limit_is_raised_by_what_the_job_needs_and_that_is_logged() -> None:
    lines, err = run(JOIN, limit="-Sn 100", SHOAL_SOCKETS="64", SHOAL_LOG="info")
    assert len(lines) == 2, (lines, err)
    for line in lines:
        before, first, second, third = map(int, line.split(" joined ")[1].split())
        assert before == 100
        assert 128 <= first - before < 200  # what the program had is still the program's
        assert first <= second < first + 200  # more where the first job was still ending
        assert third == second
    assert re.search(
        r"\[1\] shoal: INFO: rank 1 \(\S+\) may have 2\d\d descriptors instead of 100: this job needs 64 for", err
    )


def test_a_rank_that_takes_all_of_them_itself_hears_that_none_is_left() -> None:
    lines, err = run(TAKE_ALL, limit="-n 120")
    assert any(
        line.startswith("[0] failed ") and "this process has no descriptors left: it may have 120 (ulimit -n)" in line
        for line in lines
    ), (lines, err)


@pytest.mark.slow  # rank 0 waits a moment for the others, so that they hear of it too
def test_rank_zero_of_more_ranks_than_it_may_have_descriptors_says_so() -> None:
    alone = environment(RANK="0", WORLD_SIZE="200", LOCAL_RANK="0", LOCAL_WORLD_SIZE="200", MASTER_PORT="29871")
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 100; exec "$0" -c "$1"', sys.executable, JOIN],
        env=alone,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert re.search(
        r"refused \S+ ConfigurationError rank 0 .* needs 2\d\d descriptors .*199 for control connections.* may have 100",
        done.stdout,
    ), done


@contextmanager
def server_with(descriptors: int) -> Iterator[str]:
    words = ["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "bash", sys.executable, "-m", "shoal.cli", "server"]
    with subprocess.Popen(
        [*words, "--port", "0", "--proxies", "1"],
        env=environment(SHOAL_SECRET="the secret of the test"),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split("listening on ")[1].split(",")[0]
        finally:
            server.terminate()


def test_a_server_refuses_the_job_that_it_has_no_descriptors_for_and_serves_the_next() -> None:
    with server_with(60) as address:
        job = {"SHOAL_SERVERS": address, "SHOAL_SECRET": "the secret of the test", "SHOAL_COLOCATED": "never"}
        lines, err = run(JOIN, limit="-n 1000", SHOAL_SOCKETS="32", **job)
        assert len(lines) == 2, (lines, err)
        for line in lines:
            assert re.search(
                rf"refused .* the server at {address} has too few descriptors .* it may have 60; .*ulimit -n", line
            ), line
        lines, err = run(JOIN, limit="-n 1000", SHOAL_SOCKETS="4", **job)
        assert [line[:10] for line in sorted(lines)] == ["[0] joined", "[1] joined"], (lines, err)
