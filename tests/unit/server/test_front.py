"""front.py: who gets in at a dedicated server, and what a job message must say."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from local_front import SECRET, keepalive_of_ends_at, running
from shoal.assembly.terms import JobTerms
from shoal.config.addresses import Address
from shoal.config.settings import Limits
from shoal.errors import ConfigurationError
from shoal.net import messages
from shoal.net.handshake import Client, HandshakeRefused, Role
from shoal.net.messages import Message
from shoal.server.front import Front, serve

OTHER_SECRET = b"the secret of another job here"
INCARNATION = bytes(range(16))
OWNER = bytes(range(50, 66))
TERMS = JobTerms((0, 0, 1), ("a", "b"), Limits(), 15)


def exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise ConnectionResetError("the link ended")
        data += more
    return data


def call(
    address: Address,
    rank: int = 0,
    *,
    incarnation: bytes = INCARNATION,
    role: Role = Role.SERVER,
    secret: bytes = SECRET,
) -> socket.socket:
    link = socket.create_connection(address, 5)
    client = Client(secret, role, rank, incarnation=incarnation)
    link.sendall(client.start())
    while client.expects:
        link.sendall(client.feed(exactly(link, client.expects)))
    return link


def say(link: socket.socket, kind: str, fields: messages.Fields) -> Message:
    link.sendall(messages.pack(kind, fields))
    return messages.unpack(exactly(link, struct.unpack("<I", exactly(link, 4))[0]))


def refusal(message: Message) -> str:
    assert message.kind == "refused"
    return message.text("message")


def ended(link: socket.socket, limit: float = 5.0) -> bool:
    link.settimeout(limit)
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_nodes_of_a_job_are_let_in_and_the_job_ends_with_its_links() -> None:
    with running() as front:
        links = [call(front.address, rank) for rank in range(2)]
        for link in links:
            assert say(link, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        wait_for(lambda: front._core.jobs() == [INCARNATION])
        for link in links:
            link.close()
        wait_for(lambda: front._core.jobs() == [])


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def test_a_second_job_message_must_say_the_same() -> None:
    with running() as front, call(front.address, 0) as first, call(front.address, 1) as second:
        assert say(first, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        other = JobTerms(TERMS.weights, TERMS.hosts, Limits(credit=2 * Limits().credit), 15).job_fields(OWNER, 2)
        assert "'credit'" in refusal(say(second, "job", other))
        assert ended(second)


def test_each_job_has_its_own_peer_timeout_at_a_server() -> None:
    with running() as front, call(front.address) as first, call(front.address, incarnation=bytes(16)) as second:
        for link, owner, seconds in ((first, OWNER, 60), (second, bytes(16), 6)):
            terms = dataclasses.replace(TERMS, peer_timeout=seconds)
            assert say(link, "job", terms.job_fields(owner, 2)).kind == "ready"
        wait_for(lambda: front._core.statistics()["links"] == 2)
        assert sorted(keepalive_of_ends_at(front.address)) == [(2, 1, 4), (20, 10, 4)]


@pytest.mark.parametrize("seconds", [0, -1, 86401, 10**9])
def test_a_job_that_asks_for_a_senseless_peer_timeout_is_refused(seconds: int) -> None:
    with running() as front, call(front.address) as link:
        said = refusal(say(link, "job", {**TERMS.job_fields(OWNER, 2), "peer_timeout": seconds}))
        assert said == "message 'job': the field 'peer_timeout' is not a whole number from 1 to 86400"
        assert front._core.jobs() == []


@pytest.mark.parametrize("changes", [{"index": 7}, {"size": 3}, {"owner": None}, {"segment": 1}, {"weights": [0]}])
def test_a_job_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with running() as front, call(front.address) as link:
        assert "job" in refusal(say(link, "job", {**TERMS.job_fields(OWNER, 2), **changes}))
        assert front._core.jobs() == []


def test_a_rank_that_is_not_in_the_job_is_refused() -> None:
    with running() as front, call(front.address, rank=2) as link:
        assert "rank 2" in refusal(say(link, "job", TERMS.job_fields(OWNER, 2)))


def test_another_message_is_refused() -> None:
    with running() as front, call(front.address) as link:
        assert "'join'" in refusal(say(link, "join", {}))


def test_another_role_is_refused() -> None:
    with running() as front, pytest.raises(HandshakeRefused, match="another part of Shoal"):
        call(front.address, role=Role.CONTROL)


def test_a_rank_0_that_begins_another_job_ends_its_older_one() -> None:
    newer = bytes(16)
    with running() as front, call(front.address, 0) as older:
        assert say(older, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        wait_for(lambda: front._core.jobs() == [INCARNATION])
        with call(front.address, 1, incarnation=newer) as link:
            assert say(link, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
            assert not ended(older, limit=0.3)
        with call(front.address, 0, incarnation=newer) as link:
            assert say(link, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
            assert ended(older)
            wait_for(lambda: front._core.jobs() == [newer])
            with call(front.address, 1) as late:
                assert "has ended" in refusal(say(late, "job", TERMS.job_fields(bytes(16), 2)))


def test_a_holder_of_another_secret_cannot_end_a_job_with_its_owner() -> None:
    theirs = bytes(16)
    with running(0, SECRET, 1.0, OTHER_SECRET) as front, call(front.address, 0) as ours:
        assert say(ours, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        with call(front.address, 0, incarnation=theirs, secret=OTHER_SECRET) as link:
            assert say(link, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
            wait_for(lambda: sorted(front._core.jobs()) == sorted([INCARNATION, theirs]))
            assert not ended(ours, limit=0.3)
        with call(front.address, 1) as late:
            assert say(late, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"


def test_a_holder_of_another_secret_cannot_take_a_rank_of_a_job() -> None:
    with running(0, SECRET, 1.0, OTHER_SECRET) as front, call(front.address, 0) as ours:
        assert say(ours, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        for rank in (0, 1):
            with call(front.address, rank, secret=OTHER_SECRET) as link:
                assert "another secret" in refusal(say(link, "job", TERMS.job_fields(OWNER, 2)))
                assert ended(link)
        assert not ended(ours, limit=0.3)
        with call(front.address, 1) as ours_too:
            assert say(ours_too, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"


def test_two_jobs_of_different_processes_live_side_by_side() -> None:
    other = bytes(16)
    with running() as front, call(front.address) as one, call(front.address, incarnation=other) as two:
        assert say(one, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        assert say(two, "job", TERMS.job_fields(bytes(16), 2)).kind == "ready"
        wait_for(lambda: sorted(front._core.jobs()) == sorted([INCARNATION, other]))


def test_strangers_are_dropped_soon_and_keep_nobody_out() -> None:
    with running(stranger=0.5) as front:
        strangers = [socket.create_connection(front.address, 5) for _ in range(300)]
        began = time.monotonic()
        for stranger in strangers:
            assert ended(stranger)
        assert time.monotonic() - began < 5
        with call(front.address) as link:
            assert say(link, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        for stranger in strangers:
            stranger.close()


def test_strangers_who_take_their_time_make_room() -> None:
    with running(stranger=60.0) as front:
        strangers = [socket.create_connection(front.address, 5) for _ in range(600)]
        with call(front.address) as link:
            assert say(link, "job", TERMS.job_fields(OWNER, 2)).kind == "ready"
        assert ended(strangers[0])
        for stranger in strangers:
            stranger.close()


def test_what_a_job_says_with_half_a_surrogate_is_refused() -> None:
    with running() as front, call(front.address) as link:
        said = json.dumps({"type": "job", **TERMS.job_fields(OWNER, 2), "hosts": ["a", "\ud800"]}).encode()
        link.sendall(struct.pack("<I", len(said)) + said)
        answer = messages.unpack(exactly(link, struct.unpack("<I", exactly(link, 4))[0]))
        assert "'hosts'" in refusal(answer)
        assert front._core.jobs() == []


def test_a_server_reachable_from_elsewhere_needs_a_secret() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ConfigurationError, match="SHOAL_SECRET"):
            Front(host, 0, 1, [])


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}") as caught:
            serve("127.0.0.1", port, 1, [SECRET])
    assert "\n" not in str(caught.value)


PROGRAM = """
import sys
from shoal.server.front import serve
serve("127.0.0.1", 0, 2, [b"the secret of the server's test"], lambda host, port: print(host, port, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_exit(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        watchdog = threading.Timer(30, server.kill)
        watchdog.start()
        try:
            assert server.stdout is not None
            host, port = server.stdout.readline().split()
            with socket.create_connection((host, int(port)), 5):
                os.kill(server.pid, number)
                assert server.wait(10) == 0
            assert server.stderr is not None
            assert server.stderr.read() == ""
        finally:
            watchdog.cancel()
            with contextlib.suppress(ProcessLookupError):
                server.kill()
