"""What is wrong with one rank, its settings or its servers is heard by every rank."""

import dataclasses
import socket
import threading
import time

import pytest
from thread_ranks import (
    HASTY,
    LIMIT,
    OTHER_SECRET,
    SECRET,
    Outcome,
    errors,
    free_address,
    leave_all,
    run_job,
    run_ranks,
    sessions,
    settings,
)

from local_front import running
from shoal.config.addresses import Address
from shoal.errors import AuthenticationError, ConfigurationError


@pytest.mark.parametrize("tls", ["off", "psk"])
def test_a_wrong_secret_is_an_error_on_every_rank_within_seconds(tls: str) -> None:
    address = free_address()
    secrets = [SECRET, SECRET, OTHER_SECRET, SECRET]
    began = time.monotonic()
    outcomes = run_ranks([settings(rank, 4, address, secret=secret, tls=tls) for rank, secret in enumerate(secrets)])
    errors(outcomes, AuthenticationError, "SHOAL_SECRET", "rank 2")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("ours", "theirs"), [("psk", "off"), ("off", "psk")])
def test_a_rank_that_alone_encrypts_or_does_not_is_named_on_every_rank(ours: str, theirs: str) -> None:
    address = free_address()
    began = time.monotonic()
    every = [settings(rank, 3, address, tls=theirs if rank == 2 else ours) for rank in range(3)]
    outcomes = run_ranks(every)
    errors(outcomes, ConfigurationError, "SHOAL_TLS")
    errors(outcomes[:2], ConfigurationError, f"{ours} on rank 0", f"{theirs} on rank 2")
    errors(outcomes[2:], ConfigurationError, "rank 2 called rank 0")
    assert time.monotonic() - began < 5


def test_a_rank_with_another_peer_timeout_is_named_on_every_rank() -> None:
    address = free_address()
    every = [settings(rank, 3, address, peer_timeout=60 if rank == 2 else 15) for rank in range(3)]
    for message in errors(
        run_ranks(every), ConfigurationError, "SHOAL_PEER_TIMEOUT differs: 15 on rank 0", "60 on rank 2"
    ):
        assert "must be the same on every rank" in message


@pytest.mark.parametrize("server_encrypts", [True, False])
def test_a_server_that_alone_encrypts_or_does_not_is_named_on_every_rank(server_encrypts: bool) -> None:
    with running(encrypts=server_encrypts) as front:
        began = time.monotonic()
        outcomes = run_job(2, servers=(front.address,), tls="off" if server_encrypts else "psk")
        errors(outcomes, ConfigurationError, "SHOAL_TLS", str(front.address))
        assert time.monotonic() - began < 5
        assert front.statistics()["refused_encryption"] >= 1


def test_ranks_that_come_after_a_refusal_still_hear_why() -> None:
    address = free_address()
    late: list[Outcome] = []

    def come_late() -> None:
        time.sleep(0.6)
        late.extend(run_ranks([settings(2, 3, address)]))

    thread = threading.Thread(target=come_late)
    thread.start()
    outcomes = run_ranks([settings(0, 3, address), settings(1, 3, address, fusion_mb=50.0)])
    thread.join(LIMIT)
    errors([*outcomes, *late], ConfigurationError, "SHOAL_FUSION_MB")


def test_a_wrong_secret_explains_a_rank_that_never_comes_also_where_others_do_not() -> None:
    address = free_address()
    ranks = [settings(0, 4, address, timeout=2.5), settings(2, 4, address, secret=OTHER_SECRET)]
    outcomes = run_ranks([*ranks, settings(3, 4, address)])
    errors(outcomes, AuthenticationError, "SHOAL_SECRET", "rank 2")
    errors([outcomes[0], outcomes[2]], AuthenticationError, "ranks 1, 2 did not join")


def test_settings_that_differ_are_named_with_both_ranks_and_values() -> None:
    address = free_address()
    every = [settings(rank, 3, address, fusion_mb=50.0 if rank == 2 else 25.0) for rank in range(3)]
    errors(run_ranks(every), ConfigurationError, "SHOAL_FUSION_MB", "25 on rank 0", "50 on rank 2")


def test_a_rank_with_another_idea_of_the_size_is_named() -> None:
    address = free_address()
    outcomes = run_ranks([settings(0, 3, address), settings(1, 3, address), settings(2, 4, address)])
    errors(outcomes, ConfigurationError, "rank 2", "4 ranks", "rank 0")


def test_two_processes_with_one_rank_are_named() -> None:
    address = free_address()
    every = [settings(0, 3, address), settings(1, 3, address), settings(1, 3, address)]
    errors(run_ranks(every), ConfigurationError, "two processes joined as rank 1")


def test_a_server_that_is_not_there_is_named_on_every_rank() -> None:
    nowhere = free_address()
    errors(run_job(3, servers=(nowhere,)), ConfigurationError, str(nowhere), "shoal server", "SHOAL_SERVERS")


def test_a_server_that_comes_late_is_waited_for() -> None:
    address = free_address()
    deadlines = dataclasses.replace(HASTY, server=10.0)
    meeting = free_address()
    outcomes: list[Outcome] = []

    def run() -> None:
        outcomes.extend(run_ranks([settings(r, 2, meeting, servers=(address,)) for r in range(2)], deadlines=deadlines))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    with running(address.port):
        thread.join(LIMIT)
        leave_all(sessions(outcomes))


@pytest.mark.parametrize("tls", ["off", "psk"])
def test_a_server_with_another_secret_is_named_on_every_rank(tls: str) -> None:
    with running(secret=b"the secret of somebody else", encrypts=tls == "psk") as front:
        outcomes = run_job(2, servers=(front.address,), tls=tls)
        errors(outcomes, AuthenticationError, str(front.address), "SHOAL_SECRET")


def test_one_server_under_two_names_is_found_out() -> None:
    with running() as front:
        twice = (front.address, Address("localhost", front.address.port))
        errors(run_job(2, servers=twice), ConfigurationError, "the same server", "localhost")


def test_another_program_where_a_server_should_be_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = Address("127.0.0.1", other.getsockname()[1])

        def greet() -> None:
            while True:
                try:
                    caller, _ = other.accept()
                except OSError:
                    return
                with caller:
                    caller.sendall(
                        b"220 mail.example.org ESMTP ready, what can we do for you today, dear sir or madam?"
                    )

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        errors(run_job(2, servers=(address,)), ConfigurationError, str(address))
        other.shutdown(socket.SHUT_RDWR)
        thread.join(5)
