"""Jobs that cannot start: every rank gets one line that names what is wrong and says what to do, and soon."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import shoal
from shoal.testing import Cluster
from shoal.testing.cluster import Outcome

RANKS = 3
SECONDS = 40.0


def only_init() -> None:
    shoal.init()
    shoal.shutdown()


def refused(environment: dict[str, str], of_rank_1: dict[str, str] | None = None) -> list[Outcome]:
    """How each rank ended. ``of_rank_1`` is added to the environment of rank 1 alone."""
    with Cluster(RANKS) as cluster:
        job = cluster.start(
            only_init, environment_of=lambda rank: environment | ((of_rank_1 or {}) if rank == 1 else {})
        )
        return job.wait(SECONDS)


def assert_one_line(outcomes: list[Outcome], kind: type[Exception], *words: str) -> None:
    for outcome in outcomes:
        message = str(outcome.exception)
        assert isinstance(outcome.exception, kind), outcome.describe()
        assert "\n" not in message
        for word in words:
            assert word in message, f"rank {outcome.rank}: {message}"


@contextmanager
def listening() -> Iterator[int]:
    """A port on which something listens that is not Shoal, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def closed_port() -> int:
    with listening() as port:
        return port


def test_an_unknown_variable_is_named_with_the_nearest_one() -> None:
    assert_one_line(refused({"SHOAL_SERVER": "a:1"}), shoal.ConfigurationError, "SHOAL_SERVER ", "SHOAL_SERVERS")


@pytest.mark.parametrize(
    ("name", "value"), [("SHOAL_TIMEOUT", "soon"), ("SHOAL_SOCKETS", "0"), ("SHOAL_PORT_RANGE", "9-1")]
)
def test_a_malformed_value_is_named(name: str, value: str) -> None:
    assert_one_line(refused({name: value}), shoal.ConfigurationError, name, value, "expected")


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named() -> None:
    server = f"127.0.0.1:{closed_port()}"
    assert_one_line(refused({"SHOAL_SERVERS": server}), shoal.ConfigurationError, server, "shoal server")


@pytest.mark.slow  # it is given half a minute to answer
def test_a_server_that_is_something_else_is_named() -> None:
    with listening() as port:
        outcomes = refused({"SHOAL_SERVERS": f"127.0.0.1:{port}"})
    assert_one_line(outcomes, shoal.ShoalError, f"127.0.0.1:{port}")


@pytest.mark.slow
def test_a_taken_port_is_named() -> None:
    with listening() as port:
        # To all but rank 0 it might be a rank 0 that is stopped.
        outcomes = refused({"SHOAL_RENDEZVOUS": f"127.0.0.1:{port}", "SHOAL_TIMEOUT": "15"})
    assert_one_line(outcomes, shoal.ShoalError, f"127.0.0.1:{port}", "SHOAL_RENDEZVOUS")


def test_a_wrong_secret_is_named_on_every_rank() -> None:
    outcomes = refused({"SHOAL_SECRET": "the right secret of all"}, {"SHOAL_SECRET": "another secret altogether"})
    assert_one_line(outcomes, shoal.AuthenticationError, "secret", "rank 1")


def test_settings_that_differ_are_named_with_both_ranks_and_values() -> None:
    outcomes = refused({"SHOAL_FUSION_MB": "4"}, {"SHOAL_FUSION_MB": "8"})
    assert_one_line(outcomes, shoal.ConfigurationError, "SHOAL_FUSION_MB", "rank 0", "rank 1", "4", "8")
