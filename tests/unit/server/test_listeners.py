"""Where a dedicated server listens that is told of interfaces."""

import logging
import socket
from collections.abc import Iterator

import pytest

from shoal.errors import ConfigurationError
from shoal.net import listening
from shoal.server import listeners
from shoal.server.listeners import default_host, listen_on

HERE, THERE = "127.0.0.3", "127.0.0.4"


@pytest.fixture(autouse=True)
def _loopback_is_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests listen on the loopback alone; here its addresses stand for those that others reach."""
    monkeypatch.setattr(listeners, "is_loopback", lambda host: False)


def places(host: str, port: int | tuple[int, int], *interfaces: str) -> list[tuple[str, int]]:
    found = listen_on(host, port, interfaces)
    try:
        return [one.getsockname() for one in found]
    finally:
        listening.close_all(found)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else has at one of two addresses; the next one is free there."""
    with socket.create_server((THERE, 0)) as other:
        yield other.getsockname()[1]


def test_one_interface_is_of_no_interest_where_a_host_is_given() -> None:
    """SHOAL_INTERFACE of the ranks reaches servers that were started for them, and a server's machine may lack it."""
    assert [host for host, _ in places(HERE, 0, "none0")] == [HERE]
    assert [host for host, _ in places(HERE, 0, THERE)] == [HERE]


def test_of_several_interfaces_a_missing_one_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "shoal"):
        found = places(HERE, 0, THERE, "none0")
    assert [host for host, _ in found] == [HERE, THERE]
    assert len({port for _, port in found}) == 1
    assert "the server at 127.0.0.3 does not listen on all of SHOAL_INTERFACE" in caplog.text
    assert "none0" in caplog.text


def test_where_no_host_is_given_one_interface_must_be_there() -> None:
    assert default_host(("none0", "lo")) == "127.0.0.1"
    with pytest.raises(ConfigurationError, match=r"SHOAL_INTERFACE=.none0,none1. of shoal server: .*none0"):
        default_host(("none0", "none1"))


def test_of_a_range_a_port_is_found_that_is_free_at_all_addresses(taken: int) -> None:
    for _ in range(8):
        assert places(HERE, (taken, taken + 1), THERE, HERE) == [(HERE, taken + 1), (THERE, taken + 1)]
    with pytest.raises(ConfigurationError, match=f"SHOAL_PORT_RANGE={taken}-{taken}: every port of it is taken on"):
        places(HERE, (taken, taken), THERE, HERE)


def test_where_any_port_will_do_another_is_tried(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    listen, tried = listening.listen, []

    def first_the_taken_one(address: listeners.Address) -> list[socket.socket]:
        if address.port == 0 and not tried:
            tried.append(address)
            address = address._replace(port=taken)
        return listen(address)

    monkeypatch.setattr(listening, "listen", first_the_taken_one)
    found = places(HERE, 0, THERE, HERE)
    assert tried
    assert [host for host, _ in found] == [HERE, THERE]
    assert found[0][1] == found[1][1] != taken


def test_a_port_that_was_chosen_is_not_exchanged(taken: int) -> None:
    with pytest.raises(ConfigurationError, match="choose another --host or --port"):
        places(HERE, taken, THERE, HERE)
