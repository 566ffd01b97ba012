"""Who is not let in at a server: over real connections, told by name on both sides, and counted."""

import logging
import os
import socket
import struct
import time
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from local_front import SECRET, running
from shoal.assembly.listener import Listener
from shoal.cli.server import server as server_command
from shoal.config.addresses import Address
from shoal.net import messages
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import CHALLENGE_BYTES, VERDICT_BYTES, Client, HandshakeRefused, Refusal, Role
from shoal.net.listening import listen
from shoal.net.loop_thread import LoopThread
from shoal.net.rejections import Rejections
from shoal.net.sockets import Closed
from shoal.server.front import Front
from shoal.server.listeners import default_host

INCARNATION = bytes(range(16))
OTHER_INCARNATION = bytes(range(16, 32))


def exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        assert more, "the link ended early"
        data += more
    return data


def shake_hands(
    address: Address, client: Client, change: Callable[[bytes], bytes] = lambda hello: hello
) -> list[bytes]:
    """Everything that the client sent. Raises HandshakeRefused."""
    with socket.create_connection(address, 5) as link:
        sent = [change(client.start())]
        link.sendall(sent[0])
        while client.expects:
            sent.append(client.feed(exactly(link, client.expects)))
            link.sendall(sent[-1])
        return sent


def caller(secret: bytes = SECRET, role: Role = Role.SERVER, incarnation: bytes = INCARNATION) -> Client:
    return Client(secret, role, 0, incarnation=incarnation)


def wait_for_count(front: Front, reason: str, count: int) -> None:
    deadline = time.monotonic() + 5
    while front.statistics().get(f"refused_{reason}", 0) != count:
        assert time.monotonic() < deadline, front.statistics()
        time.sleep(0.01)


def another_version(hello: bytes) -> bytes:
    return hello[:5] + b"\x63" + hello[6:]


@pytest.mark.parametrize(
    ("client", "change", "reason"),
    [
        (caller(secret=b"the secret of somebody else"), bytes, Refusal.WRONG_SECRET),
        (caller(), another_version, Refusal.WRONG_VERSION),
        (caller(role=Role.CONTROL), bytes, Refusal.WRONG_ROLE),
    ],
    ids=["secret", "version", "role"],
)
def test_both_sides_hear_the_reason_and_it_is_counted(
    client: Client, change: Callable[[bytes], bytes], reason: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as front, caplog.at_level(logging.WARNING, "shoal"):
        with pytest.raises(HandshakeRefused) as refused:
            shake_hands(front.address, client, change)
        assert refused.value.refusal == reason
        wait_for_count(front, reason.name.lower(), 1)
    assert f"the server at {front.address} refused a connection from 127.0.0.1" in caplog.text
    # Of another version both are named, with the side to upgrade; the rest is the same on both sides.
    said = "it speaks version 99 of Shoal's protocol" if reason == Refusal.WRONG_VERSION else str(refused.value)
    assert said in caplog.text


def test_a_handshake_that_was_recorded_is_refused_when_it_is_replayed() -> None:
    with running() as front:
        hello, proof, _ = shake_hands(front.address, caller())
        with socket.create_connection(front.address, 5) as link:
            link.sendall(hello)
            assert exactly(link, CHALLENGE_BYTES)[6] == Refusal.WELCOME
            link.sendall(proof)
            assert exactly(link, VERDICT_BYTES) == bytes([Refusal.WRONG_SECRET]) + bytes(VERDICT_BYTES - 1)
        wait_for_count(front, "wrong_secret", 1)


def test_noise_is_counted_as_noise() -> None:
    with running(stranger=0.3) as front:
        with socket.create_connection(front.address, 5) as link:
            link.sendall(b"GET / HTTP/1.1\r\nHost: a server of another kind, surely\r\n\r\n".ljust(64))
            assert link.recv(1) == b""
        wait_for_count(front, "not_shoal", 1)
        with socket.create_connection(front.address, 5) as link:
            assert link.recv(1) == b""
        wait_for_count(front, "silent", 1)
        socket.create_connection(front.address, 5).close()
        wait_for_count(front, "gone", 1)


def test_a_message_that_is_none_is_counted() -> None:
    with running() as front, socket.create_connection(front.address, 5) as link:
        client = caller()
        link.sendall(client.start())
        while client.expects:
            link.sendall(client.feed(exactly(link, client.expects)))
        link.sendall(struct.pack("<I", messages.LONGEST_MESSAGE + 1))
        assert link.recv(1) == b""
        wait_for_count(front, "bad_message", 1)


def test_another_job_is_refused_at_a_ranks_door(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(listen(Address("127.0.0.1", 0)), SECRET, 3, Deadlines(stranger=1.0, answer=1.0))
    thread = LoopThread("shoal-listener")

    async def begin() -> None:
        listener.open(INCARNATION, 4)

    thread.start(begin())
    try:
        with caplog.at_level(logging.WARNING, "shoal"):
            with pytest.raises(HandshakeRefused) as refused:
                shake_hands(listener.address, caller(role=Role.PEER, incarnation=OTHER_INCARNATION))
            assert refused.value.refusal == Refusal.UNKNOWN_INCARNATION
            deadline = time.monotonic() + 5
            while "rank 3 refused a connection" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    finally:
        thread.run(listener.close())
        thread.stop()


def test_the_log_grows_by_the_logarithm_of_what_strangers_do(caplog: pytest.LogCaptureFixture) -> None:
    rejections = Rejections("the server")
    with caplog.at_level(logging.DEBUG, "shoal"):
        for _ in range(1000):
            rejections.note("192.0.2.1:4711", HandshakeRefused.because(Refusal.WRONG_SECRET))
        rejections.note("192.0.2.1:4711", Closed(os.EX_OK, "closed"))
    assert rejections.counts() == {"wrong_secret": 1000, "gone": 1}
    assert len(caplog.records) == 10 + 1
    assert "(wrong_secret: 512)" in caplog.text


def test_a_server_listens_on_loopback_unless_it_is_told_otherwise() -> None:
    assert default_host(()) == "127.0.0.1"
    assert default_host(("lo",)) == "127.0.0.1"
    said = CliRunner().invoke(server_command, ["--help"]).output
    assert "[default: that of SHOAL_INTERFACE, or 127.0.0.1]" in " ".join(said.split())
    with running() as front:
        assert [each.getsockname()[0] for each in front._listeners] == ["127.0.0.1"]
