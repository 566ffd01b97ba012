"""errors.py: native statuses and the names on the wire become the public exceptions."""

import pickle

import pytest

from shoal import errors
from shoal.errors import ConfigurationError, Mismatch, PeerLost, ShoalError, Timeout, error_from_name, error_from_status
from shoal.net.handshake import HandshakeRefused, Refusal


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errors.MISMATCH, Mismatch),
        (errors.PEER_LOST, PeerLost),
        (errors.TIMEOUT, Timeout),
        (errors.PEER_LEFT, PeerLost),
        (errors.LIMIT, ShoalError),
        (errors.PROTOCOL, ShoalError),
        (errors.FAILED_ON_RANK, ShoalError),
        (errors.ABORTED, ShoalError),
        (errors.CANCELLED, ShoalError),
        (77, ShoalError),
    ],
)
def test_every_status_has_its_exception(code: int, kind: type[ShoalError]) -> None:
    error = error_from_status(code, 1, "layer3 broke", ["a", "b"])
    assert type(error) is kind
    assert "layer3 broke" in str(error)


def test_a_lost_peer_says_its_rank_and_host_and_is_a_connection_error() -> None:
    error = error_from_status(errors.PEER_LOST, 1, "rank 1 (b) is lost", ["a", "b"])
    assert isinstance(error, PeerLost)
    assert isinstance(error, ConnectionError)
    assert (error.rank, error.host, str(error)) == (1, "b", "rank 1 (b) is lost")


def test_a_lost_server_has_no_rank() -> None:
    error = error_from_status(errors.PEER_LOST, -1, "server s:7077 is lost", ["a", "b"])
    assert isinstance(error, PeerLost)
    assert (error.rank, error.host) == (-1, "")


def test_a_time_out_is_pythons_too() -> None:
    assert isinstance(error_from_status(errors.TIMEOUT, -1, "late"), TimeoutError)


def test_status_zero_is_no_error() -> None:
    with pytest.raises(ValueError, match="no error"):
        error_from_status(errors.OK, -1, "")


def test_a_lost_peer_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(PeerLost("gone", 3, "c")))
    assert (str(error), error.rank, error.host) == ("gone", 3, "c")


def test_names_go_over_the_wire_and_unknown_ones_are_plain_errors() -> None:
    assert type(error_from_name("ConfigurationError", "x")) is ConfigurationError
    assert type(error_from_name("SystemExit", "x")) is ShoalError
    assert errors.name_of(Timeout("x")) == "Timeout"
    assert errors.name_of(HandshakeRefused.because(Refusal.WRONG_SECRET)) == "AuthenticationError"
