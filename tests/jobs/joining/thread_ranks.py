"""Ranks that are threads of one process: they join over real sockets on loopback, through ``bootstrap.join``."""

import dataclasses
import socket
import threading
import time
from typing import Any

import pytest

from local_front import SECRET
from shoal.config.addresses import Address
from shoal.config.launchers import Launch
from shoal.config.settings import Limits, Settings
from shoal.errors import ShoalError
from shoal.job.bootstrap import Session, join
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, Role
from shoal.processes import free_master_port

# As the default, but for what the tests wait for.
HASTY = Deadlines(
    stranger=1.0,
    proven=1.0,
    answer=5.0,
    call=0.5,
    late=0.3,
    rendezvous=20.0,
    silence=1.0,
    server=0.6,
    farewell=1.0,
    unproven=0.7,
)
OTHER_SECRET = b"not the secret of these tests"
LIMIT = 30.0

Outcome = Session | BaseException


_given_away: set[int] = set()


def free_address(host: str = "127.0.0.1") -> Address:
    """One that no earlier call gave, outside of the range from which the kernel takes ports of its own choice: a port
    of that range can come twice, or be taken by a connection before the test listens there.
    """
    while (port := free_master_port(host)) in _given_away:
        pass
    _given_away.add(port)
    return Address(host, port)


def settings(rank: int, size: int, address: Address | None, **changes: Any) -> Settings:
    launch = Launch("test", rank, size, rank, size, None, 29500, "")
    return dataclasses.replace(Settings(launch, secret=SECRET, rendezvous=address, timeout=LIMIT), **changes)


def run_ranks(all_settings: list[Settings], **arguments: Any) -> list[Outcome]:
    """What each rank's ``join`` returned or raised, in the order of the list. Fails if one takes too long."""
    outcomes: dict[int, Outcome] = {}

    def run(place: int) -> None:
        try:
            outcomes[place] = join(all_settings[place], **{"limits": Limits(), "deadlines": HASTY, **arguments})
        except BaseException as error:
            outcomes[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(all_settings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(outcomes) == len(all_settings), f"only {sorted(outcomes)} came to an end"
    return [outcomes[place] for place in range(len(all_settings))]


def run_job(size: int, **changes: Any) -> list[Outcome]:
    address = free_address()
    return run_ranks([settings(rank, size, address, **changes) for rank in range(size)])


def sessions(outcomes: list[Outcome]) -> list[Session]:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Session)]


def leave_all(joined: list[Session]) -> None:
    for session in joined:
        session.leave(10.0)
    for session in joined:
        assert session.wait_ended(10.0)


def errors(outcomes: list[Outcome], kind: type[ShoalError], *parts: str) -> list[str]:
    """The one-line messages of outcomes that are all of this kind and name all of these."""
    for outcome in outcomes:
        assert isinstance(outcome, kind), repr(outcome)
        for part in parts:
            assert part in str(outcome), str(outcome)
        assert "\n" not in str(outcome)
    return [str(outcome) for outcome in outcomes]


def call(address: Address) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(address, 5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "rank 0 does not listen"
            time.sleep(0.01)


def authenticated(address: Address, rank: int) -> socket.socket:
    """A control link that has said nothing yet but that it holds the secret."""
    link, client = call(address), Client(SECRET, Role.CONTROL, rank)
    link.sendall(client.start())
    while client.expects:
        link.sendall(client.feed(exactly(link, client.expects)))
    return link


def exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += link.recv(count - len(data)) or pytest.fail("the link ended")
    return data
