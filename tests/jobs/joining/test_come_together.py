"""Ranks come together and leave: with servers and lanes, in a port range, by a store."""

import json
import socket
import threading
import time

import pytest
from thread_ranks import SECRET, errors, free_address, leave_all, run_job, run_ranks, sessions, settings

from local_front import keepalive_of_ends_at, running
from shoal.errors import ConfigurationError


@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_come_together_and_leave(size: int) -> None:
    joined = sessions(run_job(size))
    assert [session.rank for session in joined] == list(range(size))
    assert {session.size for session in joined} == {size}
    assert len({session.incarnation for session in joined}) == 1
    assert joined[0].hosts == [socket.gethostname()] * size
    assert all(session.engine.statistics()["open_operations"] == 0 for session in joined)
    leave_all(joined)


def test_with_servers_and_lanes() -> None:
    with running() as one, running() as other:
        joined = sessions(run_job(3, servers=(one.address, other.address), sockets=3))
        assert joined[0].lanes == 3
        leave_all(joined)


def test_encrypted_with_servers_and_lanes() -> None:
    other_secret = b"a secret that another job has"
    with running(encrypts=True) as one, running(0, SECRET, 1.0, other_secret, encrypts=True) as other:
        joined = sessions(run_job(3, servers=(one.address, other.address), sockets=3, tls="psk"))
        assert one.statistics()["links"] == 9
        leave_all(joined)


def test_a_server_has_the_patience_of_the_job_with_its_links() -> None:
    with running() as front:
        joined = sessions(run_job(2, servers=(front.address,), colocated="never", peer_timeout=60))
        end = time.monotonic() + 5
        while front.statistics()["links"] < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert keepalive_of_ends_at(front.address) == [(20, 10, 4)] * 2
        leave_all(joined)


def test_a_job_can_follow_another_at_the_same_address() -> None:
    address = free_address()
    for _ in range(3):
        leave_all(sessions(run_ranks([settings(rank, 3, address) for rank in range(3)])))


def test_ipv6() -> None:
    address = free_address("::1")
    leave_all(sessions(run_ranks([settings(rank, 2, address) for rank in range(2)])))


def test_listeners_stay_in_the_port_range() -> None:
    ports = (free_address().port, free_address().port)
    first, last = min(ports), max(ports)
    joined = sessions(run_job(2, port_range=(first, last)))
    for session in joined:
        assert first <= session._joined.welcome.addresses[session.rank].port <= last
    leave_all(joined)


def test_a_full_port_range_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        errors(run_job(2, port_range=(port, port)), ConfigurationError, f"SHOAL_PORT_RANGE={port}-{port}")


def test_an_unknown_interface_is_named() -> None:
    alone = settings(0, 2, free_address(), interfaces=("nope0",))
    errors(run_ranks([alone]), ConfigurationError, "nope0", "rank 0")


class SharedStore:
    """A launcher's store: ``get`` waits until somebody has set the key, and gives bytes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, 10)
            return self.values[key]


def test_a_store_carries_address_and_secret() -> None:
    store = SharedStore()
    for _ in range(2):
        nothing_known = [settings(rank, 3, None, secret=None) for rank in range(3)]
        leave_all(sessions(run_ranks(nothing_known, store=store)))
    secrets = [json.loads(value)["secret"] for value in store.values.values()]
    assert len(set(secrets)) == 2


def test_a_configured_secret_does_not_go_into_the_store() -> None:
    store = SharedStore()
    leave_all(sessions(run_ranks([settings(rank, 2, None) for rank in range(2)], store=store)))
    (value,) = store.values.values()
    assert json.loads(value)["secret"] is None
    assert SECRET not in value
