"""Joining, over real sockets on loopback: threads as ranks, through ``bootstrap.join`` up to a started engine."""

import contextlib
import dataclasses
import gc
import json
import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from local_front import keepalive_of_ends_at, running
from shoal import _native
from shoal.config.addresses import Address, is_loopback
from shoal.config.launchers import Launch, read_launch
from shoal.config.settings import Limits, Settings
from shoal.errors import AuthenticationError, ConfigurationError, PeerLost, ShoalError, Timeout
from shoal.job.bootstrap import Session, _shared, join
from shoal.job.session import _sessions
from shoal.net import handshake, messages
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, Role
from shoal.server.front import Front

SECRET = b"the secret of the bootstrap's tests"
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

# docs/protocol.md, section 4.
ALL_GATHER, BARRIER, INT32 = 4, 6, 7

Outcome = Session | BaseException


def free_address() -> Address:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", probe.getsockname()[1])


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


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Threads and descriptors are where they were."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    yield
    for session in list(_sessions):  # of a test that failed
        session.close()
    deadline = time.monotonic() + 5
    while _shoal_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _shoal_threads() == []
    gc.collect()  # pytest keeps frames of failures in cycles
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def _shoal_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shoal-")]


# --- Coming together ---


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
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        address = Address("::1", probe.getsockname()[1])
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


# --- Stores ---


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


# --- What is wrong is heard by all ---


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


def test_a_taken_rendezvous_port_is_an_error_on_every_rank() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        deadlines = dataclasses.replace(HASTY, rendezvous=3.0)
        outcomes = run_ranks([settings(rank, 3, address) for rank in range(3)], deadlines=deadlines)
        errors(outcomes[:1], ConfigurationError, str(address), "SHOAL_RENDEZVOUS", "taken")
        # To them it might be a rank 0 that is stopped.
        errors(outcomes[1:], Timeout, str(address), "another program has this port", "SHOAL_RENDEZVOUS")


def test_what_ends_every_connection_without_a_word_is_not_rank_zero() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.accept()[0].close()

        ending = threading.Thread(target=hang_up)
        ending.start()
        try:
            errors(run_ranks([settings(1, 2, address)]), ConfigurationError, str(address), "is not rank 0 of this job")
        finally:
            taken.shutdown(socket.SHUT_RDWR)
            ending.join(LIMIT)


def test_an_address_that_is_not_rank_zeros_is_named() -> None:
    errors(run_ranks([settings(0, 2, Address("192.0.2.77", 7000))]), ConfigurationError, "192.0.2.77:7000")


def of_several_machines(rank: int, size: int, address: Address | None, **changes: Any) -> Settings:
    launch = Launch("test", rank, size, 0, 1, None, 29500, "")
    return dataclasses.replace(settings(rank, size, address), launch=launch, **changes)


@pytest.mark.parametrize("host", ["192.0.2.77", "head.invalid"])  # RFC 5737, RFC 2606: nobody has them
def test_with_a_secret_rank_zero_can_be_met_under_a_name_that_is_not_its_own(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a service's address: what leads there is not seen by rank 0."""
    port = free_address().port
    ways = [Address(host, port), Address("127.0.0.1", port), Address("127.0.0.2", port)]
    joined = sessions(run_ranks([of_several_machines(rank, 3, way) for rank, way in enumerate(ways)]))
    assert f"{host} is no address of rank 0's machine" in caplog.text
    # The rendezvous alone was everywhere: what a rank listens at is one address.
    addresses = [address.host for address in joined[0]._joined.welcome.addresses]
    assert addresses[1:] == ["127.0.0.1", "127.0.0.1"]
    assert addresses[0] not in ("0.0.0.0", "::")
    leave_all(joined)


def test_without_a_secret_of_its_own_rank_zero_is_met_where_its_name_leads(tmp_path: Path) -> None:
    port = free_address().port
    address = Address("localhost", port)
    private = [of_several_machines(rank, 2, address, secret=None, secret_folder=tmp_path) for rank in range(2)]
    joined = sessions(run_ranks(private))
    assert all(is_loopback(address.host) for address in joined[0]._joined.welcome.addresses)
    leave_all(joined)


def test_nobody_who_knows_where_rank_zero_is() -> None:
    errors(run_ranks([settings(1, 2, None)]), ConfigurationError, "rank 1", "SHOAL_RENDEZVOUS=host:port")


def test_several_machines_need_a_secret() -> None:
    far = Launch("test", 0, 2, 0, 1, "192.0.2.1", 7000, "")
    outcomes = run_ranks([Settings(far, timeout=5.0)])
    errors(outcomes, ConfigurationError, "SHOAL_SECRET", "openssl rand")


def test_ranks_on_one_machine_need_none(tmp_path: Any) -> None:
    leave_all(sessions(run_job(2, secret=None, secret_folder=tmp_path)))


def test_rank_zero_that_never_comes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    with caplog.at_level(logging.WARNING, "shoal"):
        outcomes = run_ranks([settings(1, 2, address, timeout=1.0)])
    errors(outcomes, Timeout, "rank 1", str(address), "rank 0")
    assert "still trying" in caplog.text


def test_a_rank_that_never_comes_is_named_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    with caplog.at_level(logging.WARNING, "shoal"):
        outcomes = run_ranks([settings(rank, 4, address, timeout=1.0) for rank in (0, 2)])
    errors(outcomes, Timeout, "ranks 1, 3")
    assert "ranks 1, 3 of 4" in caplog.text


INTERACTIVE = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURM_STEP_NODELIST": "node7",
    "SLURM_JOB_ID": "88",
    "SLURM_STEP_ID": "0",
}


def test_a_shell_inside_a_job_hears_which_variables_promise_others(caplog: pytest.LogCaptureFixture) -> None:
    """As a plain python in `srun --pty bash`, on rank 0 and in the shell of another task."""
    promised = "SLURM_PROCID={0} and SLURM_STEP_NUM_TASKS=4 in the environment say that this is rank {0} of 4"
    alone = "if this process is to run alone, set RANK=0 and WORLD_SIZE=1"
    for rank in (0, 1):
        launch = read_launch({**INTERACTIVE, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        with caplog.at_level(logging.WARNING, "shoal"):
            outcomes = run_ranks([Settings(launch, secret=SECRET, timeout=1.0)])
        errors(outcomes, Timeout, promised.format(rank), alone)
        assert promised.format(rank) in caplog.text  # in the first warning already


def test_ranks_that_have_met_are_more_than_a_promise() -> None:
    launches = [
        read_launch({**INTERACTIVE, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(2)
    ]
    outcomes = run_ranks([Settings(launch, secret=SECRET, timeout=1.0) for launch in launches])
    assert all("alone" not in message for message in errors(outcomes, Timeout, "ranks 2, 3"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "0"}, id="no secret"),
        pytest.param(
            {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": ""}, id="no host"
        ),
    ],
)
def test_what_other_machines_need_is_asked_with_who_promised_them(changes: dict[str, str]) -> None:
    outcomes = run_ranks([Settings(read_launch({**INTERACTIVE, **changes}))])
    errors(outcomes, ConfigurationError, "SLURM_STEP_NUM_TASKS=4", "to run alone, set RANK=0 and WORLD_SIZE=1")


# --- Strangers and the dying ---


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
    """Twice: while ranks are missing, and when all have joined and wait for a server. One has a number that is none here."""
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
            "address": ["127.0.0.1", 9],
            "settings": _shared(zero, Limits()),
        }
        link.sendall(messages.pack("join", fields))
        time.sleep(0.2)
        link.close()

    (outcome,) = beside_rank_zero(address, 3, die)
    errors([outcome], PeerLost, "rank 1 (host elsewhere)")
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


# --- The life of a session ---


def finished(handles: list[_native.Handle]) -> None:
    for handle in handles:
        status = handle.wait(LIMIT)
        assert status is not None
        assert (status.code, status.message) == (0, "")


@pytest.mark.parametrize("tls", ["off", "psk"])
def test_peers_connect_on_first_use(tls: str) -> None:
    address = free_address()
    # Nodes of their own: ranks of one send nothing.
    ranks = [settings(rank, 3, address, tls=tls) for rank in range(3)]
    apart = [dataclasses.replace(one, launch=dataclasses.replace(one.launch, local_rank=0)) for one in ranks]
    joined = sessions(run_ranks(apart))
    finished([session.engine.submit(BARRIER, 0, "", 0, 0, [], [], 0, None, None, LIMIT) for session in joined])
    connected = joined[2].engine.statistics()["links"]
    blocks = [numpy.full((2, 50_000), session.rank, numpy.int32) for session in joined]
    handles = [
        session.engine.submit(ALL_GATHER, 0, "", 0, INT32, list(block.shape), [], 0, _native.Array(block), None, LIMIT)
        for session, block in zip(joined, blocks, strict=True)
    ]
    finished(handles)
    for handle in handles:
        found = numpy.frombuffer(handle.output(), numpy.int32).reshape(6, -1)
        assert found[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert joined[2].engine.statistics()["links"] == connected + 2
    leave_all(joined)


def test_closing_one_is_a_loss_to_the_others() -> None:
    joined = sessions(run_job(3))
    joined[1].close()
    joined[1].close()
    assert joined[1].wait_ended(0)
    joined[0].leave(10.0)
    joined[2].leave(10.0)
    assert joined[0].wait_ended(10.0)
    assert joined[2].wait_ended(10.0)


def test_an_attempt_at_a_lost_server_ends_in_time_and_leaves_no_connection() -> None:
    """What listens at its address accepts connections and says nothing."""
    address, deadlines = free_address(), dataclasses.replace(HASTY, returning=0.3)
    with running() as front:
        ranks = [settings(rank, 2, address, servers=(front.address,)) for rank in range(2)]
        joined = sessions(run_ranks(ranks, deadlines=deadlines))
    lost = 2 * joined[1].lanes
    with socket.create_server((front.address.host, front.address.port)):
        began = time.monotonic()
        joined[1]._links.run(joined[1]._connect_server(lost, 1))
        assert time.monotonic() - began < 5
    leave_all(joined)


def test_an_abort_ends_the_session() -> None:
    joined = sessions(run_job(2))
    joined[1].abort("out of cheese")
    assert joined[1].wait_ended(0)
    joined[0].leave(10.0)
    assert joined[0].wait_ended(10.0)


def test_a_session_lingers_until_all_have_left() -> None:
    joined = sessions(run_job(2))
    joined[0].leave(10.0)
    assert not joined[0].wait_ended(0.2)
    joined[1].leave(10.0)
    assert joined[0].wait_ended(10.0)
    assert joined[1].wait_ended(10.0)


def test_a_forked_child_has_nothing_of_it() -> None:
    joined = sessions(run_job(2))
    child = os.fork()
    if child == 0:
        os._exit(_look_around_in_child(joined[0]))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    leave_all(joined)


def _look_around_in_child(session: Session) -> int:
    try:
        session.leave(1.0)
        session.abort("nothing")
        session.close()
        if not session.wait_ended(0):
            return 2
        try:
            session.engine.statistics()
        except ShoalError:
            return 0
    except BaseException:
        return 3
    return 4


def test_an_interrupted_join_leaves_nothing_and_the_others_hear_of_it() -> None:
    """As Ctrl-C does, in the middle of waiting."""
    address = free_address()
    others: list[Outcome] = []
    thread = threading.Thread(target=lambda: others.extend(run_ranks([settings(1, 3, address)])))
    thread.start()
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        join(settings(0, 3, address), Limits(), deadlines=HASTY)
    thread.join(LIMIT)
    timer.join()
    errors(others, PeerLost, "rank 0")


def test_a_server_front_is_what_the_fixture_says() -> None:
    with running() as front:
        assert isinstance(front, Front)
        with call(front.address) as stranger:
            stranger.settimeout(10)
            stranger.sendall(b"x" * 64)
            assert stranger.recv(1) == b""
