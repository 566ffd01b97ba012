"""SHOAL_TLS=psk in whole jobs: the same bits, nothing readable on the way, and no changed byte that goes unnoticed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from relay import Relay

import shoal
from shoal.testing import Cluster

SECONDS = 60.0
SECRET = "a secret that the test knows, too"
# Repeated, it is the content of an array; no two bytes of it are alike for long.
PATTERN = b"confidential gradient 0123456789"
RANKS = 3


def digest_of_everything() -> str:
    """Of the results of operations on all kinds of links: control, server and peer."""
    shoal.init()
    random = numpy.random.default_rng(shoal.rank())
    found = hashlib.sha256()
    for count in (1, 1000, 300_000, 1_000_003):
        for dtype in (numpy.float32, numpy.float16):
            found.update(shoal.allreduce(random.standard_normal(count).astype(dtype), op="mean").tobytes())
    found.update(shoal.broadcast(random.standard_normal(200_000), 1).tobytes())
    found.update(shoal.allgather(random.standard_normal((100 + shoal.rank(), 700))).tobytes())
    shoal.barrier()
    shoal.shutdown()
    return found.hexdigest()


def known_content() -> str:
    shoal.init()
    array = numpy.frombuffer(PATTERN * 20_000, numpy.uint8).copy()
    for _ in range(3):
        result = shoal.allreduce(array, op="max")
        if not numpy.array_equal(result, array):
            return "wrong numbers"
    shoal.shutdown()
    return "right"


def test_an_encrypted_job_has_the_same_bits_as_one_in_the_clear() -> None:
    digests = set()
    for tls in ("off", "psk"):
        environment = {"SHOAL_TLS": tls, "SHOAL_SOCKETS": "2", "SHOAL_THREADS": "2"}
        with Cluster(RANKS, servers=1, environment=environment) as cluster:
            digests |= set(cluster.start(digest_of_everything).results(SECONDS))
    assert len(digests) == 1


@pytest.mark.parametrize("tls", ["psk", "off"])
def test_the_content_of_an_array_is_on_the_network_only_in_the_clear(tls: str) -> None:
    environment = {"SHOAL_TLS": tls, "SHOAL_COLOCATED": "never", "SHOAL_SECRET": SECRET}
    with Cluster(2, servers=1, environment=environment) as cluster, Relay(cluster.addresses[0]) as relay:
        job = cluster.start(known_content, environment_of=lambda rank: {"SHOAL_SERVERS": relay.address})
        assert job.results(SECONDS) == ["right", "right"]
        seen = bytes(relay.seen)
    assert len(seen) > 3 * 2 * 2 * 20_000 * len(PATTERN)
    assert (PATTERN in seen) == (tls == "off")
    assert (b'"type"' in seen) == (tls == "off")
    assert SECRET.encode() not in seen


@pytest.mark.parametrize(
    "after", [100_000, *(pytest.param(after, marks=pytest.mark.slow) for after in (3_000, 1_000_000))]
)
def test_a_changed_byte_is_an_error_on_every_rank_and_never_a_wrong_number(after: int) -> None:
    environment = {"SHOAL_TLS": "psk", "SHOAL_COLOCATED": "never"}
    with (
        Cluster(2, servers=1, environment=environment) as cluster,
        Relay(cluster.addresses[0], flip_after=after) as relay,
    ):
        job = cluster.start(known_content, environment_of=lambda rank: {"SHOAL_SERVERS": relay.address})
        outcomes = job.wait(SECONDS)
    for outcome in outcomes:
        assert isinstance(outcome.exception, shoal.ShoalError), outcome.describe()
    assert any("changed on its way" in str(outcome.exception) for outcome in outcomes), outcomes[0].describe()


def ends_without_shutdown() -> float:
    shoal.init()
    return float(shoal.allreduce(numpy.full(100_000, shoal.rank() + 1.0), op="sum")[0])


def test_a_rank_that_just_ends_says_goodbye_when_python_is_gone() -> None:
    """The connections outlive the interpreter, and OpenSSL's own end of the process must come after theirs."""
    with Cluster(RANKS, environment={"SHOAL_TLS": "psk"}) as cluster:
        outcomes = cluster.start(ends_without_shutdown).wait(SECONDS)
    assert [(outcome.exit_code, outcome.value, outcome.stderr) for outcome in outcomes] == [(0, 6.0, "")] * RANKS


def test_shoal_run_with_servers() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    script = Path(__file__).with_name("sum_of_ranks.py")
    command = [sys.executable, "-m", "shoal.cli", "run", "-n", "2", "--nodes", "2", "--servers", "1", str(script)]
    done = subprocess.run(
        command, env={**environment, "SHOAL_TLS": "psk"}, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 1 of 2: the sum is 3" in done.stdout
