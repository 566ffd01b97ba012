"""Strangers, ranks of other jobs, and ranks that die while a job comes together."""

import contextlib
import dataclasses
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest
from thread_ranks import (
    HASTY,
    LIMIT,
    OTHER_SECRET,
    SECRET,
    Outcome,
    authenticated,
    call,
    errors,
    exactly,
    free_address,
    leave_all,
    run_ranks,
    sessions,
    settings,
)

from local_front import running
from shoal.config.addresses import Address
from shoal.config.settings import Limits
from shoal.errors import AuthenticationError, PeerLost, ShoalError
from shoal.job.bootstrap import _shared
from shoal.net import handshake, messages
from shoal.net.handshake import Role


def beside_rank_zero(address: Address, size: int, act: Callable[[], None]) -> list[Outcome]:
    """Rank 0's outcome, while something else happens to it."""
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(run_ranks([settings(0, size, address)])))
    thread.start()
    act()
    thread.join(LIMIT)
    return outcomes


def test_strangers_are_dropped_and_the_job_begins_all_the_same() -> None:
    address = free_address()
    ends: list[float] = []
    others: list[Outcome] = []

    def bother() -> None:
        began = time.monotonic()
        silent, loud, liar = call(address), call(address), authenticated(address, 1)
        loud.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        for stranger in (silent, loud, liar):
            stranger.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
            stranger.close()
            ends.append(time.monotonic() - began)
        others.extend(run_ranks([settings(1, 2, address)]))

    outcomes = beside_rank_zero(address, 2, bother)
    assert max(ends) < HASTY.stranger + 2
    leave_all(sessions([*outcomes, *others]))


@pytest.mark.parametrize(
    ("tls", "of_the_others", "said"),
    [
        ("off", {"secret": OTHER_SECRET}, "SHOAL_SECRET"),
        ("psk", {"secret": OTHER_SECRET, "tls": "psk"}, "SHOAL_SECRET"),
        ("off", {"tls": "psk"}, "SHOAL_TLS"),
        ("psk", {"tls": "off"}, "SHOAL_TLS"),
    ],
)
def test_ranks_of_another_job_that_call_here_are_refused_and_the_job_begins_all_the_same(
    tls: str, of_the_others: dict[str, str | bytes], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice: while ranks are missing, and when all have joined and wait for a server. One has a number that is none
    here.
    """
    address, server = free_address(), free_address()
    deadlines = dataclasses.replace(HASTY, server=10.0)
    strangers: list[Outcome] = []
    others: list[Outcome] = []

    def come(ranks: list[int]) -> threading.Thread:
        ours = [settings(rank, 3, address, tls=tls, servers=(server,)) for rank in ranks]
        thread = threading.Thread(target=lambda: others.extend(run_ranks(ours, deadlines=deadlines)))
        thread.start()
        return thread

    def call_all() -> None:
        strangers.extend(run_ranks([settings(rank, 6, address, **of_the_others) for rank in (1, 2, 5)]))

    threads = [come([0])]
    call_all()
    threads.append(come([1, 2]))
    time.sleep(0.5)
    call_all()
    time.sleep(1.5 * deadlines.unproven)
    with running(server.port, encrypts=tls == "psk"):
        for thread in threads:
            thread.join(LIMIT)
        leave_all(sessions(others))
    errors(strangers, ShoalError, "called rank 0", said)
    assert "rank 0 refused a connection" in caplog.text


def test_a_rank_may_come_long_after_others_have_used_its_number_if_one_is_missing_that_they_did_not_use() -> None:
    address = free_address()
    others: list[Outcome] = []

    def bother() -> None:
        errors(run_ranks([settings(1, 3, address, secret=OTHER_SECRET)]), AuthenticationError, "SHOAL_SECRET")
        time.sleep(2 * HASTY.unproven)
        others.extend(run_ranks([settings(rank, 3, address) for rank in (1, 2)]))

    outcomes = beside_rank_zero(address, 3, bother)
    leave_all(sessions([*outcomes, *others]))


def test_a_rank_that_dies_before_the_job_begins_is_named() -> None:
    address = free_address()

    def die() -> None:
        link = authenticated(address, 1)
        zero = settings(0, 3, address)
        fields = {
            "rank": 1,
            "size": 3,
            "host": "elsewhere",
            "machine": "elsewhere",
            "local_rank": 0,
            "threads": 0,
            "processors": 1,
            "rails": [],
            "address": ["127.0.0.1", 9],
            "settings": _shared(zero, Limits()),
        }
        link.sendall(messages.pack("join", fields))
        time.sleep(0.2)
        link.close()

    (outcome,) = beside_rank_zero(address, 3, die)
    errors([outcome], PeerLost, "rank 1 (elsewhere)")
    assert isinstance(outcome, PeerLost)
    assert (outcome.rank, outcome.host) == (1, "elsewhere")


def test_a_rank_whose_server_only_stands_by_and_cannot_be_reached_says_how_to_do_without() -> None:
    address = free_address()
    with running() as one, running() as other:
        zero = settings(0, 2, address, servers=(one.address, other.address))
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.extend(run_ranks([zero])))
        thread.start()
        link = authenticated(address, 1)
        fields = {
            "rank": 1,
            "size": 2,
            "host": "elsewhere",
            "machine": "elsewhere",
            "local_rank": 0,
            "threads": 0,
            "processors": 1,
            "rails": [],
            "address": free_address(),
            "settings": _shared(zero, Limits()),
        }
        link.sendall(messages.pack("join", fields))
        thread.join(LIMIT)
        link.close()
    errors(
        outcomes, PeerLost, "elsewhere (rank 1)", "SHOAL_COLOCATED=never", "the loss of the last dedicated server ends"
    )


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", messages.pack("go", {}), messages.pack("join", {"rank": 1})])
def test_a_first_message_that_is_none_ends_the_attempt(data: bytes) -> None:
    address = free_address()

    def speak() -> None:
        with authenticated(address, 1) as link:
            link.sendall(data)
            link.settimeout(5)
            length = struct.unpack("<I", exactly(link, 4))[0] if data[0] != 0xFF else 0
            if length:
                assert messages.unpack(exactly(link, length)).kind == "refused"

    errors(beside_rank_zero(address, 2, speak), ShoalError, "rank 1")


def test_a_connection_that_an_earlier_listener_left_behind_is_tried_again() -> None:
    """The first callers are hung up on; then rank 0 comes."""
    address = free_address()
    earlier = socket.create_server(address)
    others: list[Outcome] = []
    thread = threading.Thread(target=lambda: others.extend(run_ranks([settings(1, 2, address)])))
    thread.start()
    for _ in range(3):
        caller, _ = earlier.accept()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()
    earlier.close()
    outcomes = run_ranks([settings(0, 2, address)])
    thread.join(LIMIT)
    leave_all(sessions([*outcomes, *others]))


def test_rank_zero_that_dies_while_others_wait_is_named() -> None:
    address = free_address()
    with socket.create_server(address) as listener:
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.extend(run_ranks([settings(1, 3, address)])))
        thread.start()
        link, _ = listener.accept()
        server = handshake.Server([SECRET], bytes(16), [Role.CONTROL])
        while server.expects:
            link.sendall(server.feed(exactly(link, server.expects)))
        exactly(link, struct.unpack("<I", exactly(link, 4))[0])
        link.close()
        thread.join(LIMIT)
    errors(outcomes, PeerLost, "rank 0", str(address))
