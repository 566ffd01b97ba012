"""encryption.py: the key and its name, byte by byte, and connections that are encrypted with it."""

import asyncio
import contextlib
import gc
import hashlib
import hmac
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from local_front import SECRET, running
from shoal import _native
from shoal.config.addresses import Address
from shoal.net import encryption, sockets
from shoal.net.encryption import Connection, Damaged, caller, identity, key
from shoal.net.handshake import Client, HandshakeRefused, Refusal, Role, Server

OTHER = b"the secret of another job"


def test_the_key_and_its_name_are_those_of_the_page() -> None:
    name = hmac.new(SECRET, b"shoal psk name 1", hashlib.sha256).hexdigest()[:32]
    assert identity(SECRET, Role.PEER, 12) == b"shoal 1 3 12 " + name.encode()
    expected = hmac.new(SECRET, b"shoal psk 1" + identity(SECRET, Role.PEER, 12), hashlib.sha256).digest()
    assert key(SECRET, identity(SECRET, Role.PEER, 12)) == expected


def test_each_secret_role_and_rank_has_a_key_of_its_own() -> None:
    names = [identity(secret, role, rank) for secret in (SECRET, OTHER) for role in Role for rank in (0, 1, 2**32 - 1)]
    assert len(set(names)) == len(names)
    assert len({key(SECRET, name) for name in names}) == len(names)
    assert all(len(name) <= 127 for name in names)


def test_an_identity_says_who_calls() -> None:
    found = caller(b"bytes before" + identity(SECRET, Role.SERVER, 4711) + b"and after")
    assert found == (Role.SERVER, 4711)
    for wrong in (b"", b"shoal 1 9 0 " + b"0" * 32, b"shoal 2 1 0 " + b"0" * 32, b"shoal 1 1 01 " + b"0" * 32):
        assert caller(wrong) is None


def test_rest_of_a_record() -> None:
    record = b"\x16\x03\x01" + (300).to_bytes(2, "big") + bytes(300)
    assert encryption.is_client_hello(record)
    assert encryption.rest_of_record(record[:64]) == 241
    assert encryption.rest_of_record(record) == 0
    assert encryption.rest_of_record(b"\x16\x03\x01\xff\xff" + bytes(59)) == 16384 + 5 - 64


# --- Both sides over a pair of sockets ---


def both(ours: Client, theirs: Server, carry: Callable[[bytes], bytes] | None = None) -> tuple[Connection, Connection]:
    """Both ends after their handshakes. Raises what the client raised; ``theirs`` says what the server made of it."""

    async def run() -> tuple[Connection, Connection]:
        near, far = (Connection.adopt(sockets.watched(end)) for end in socket.socketpair())
        client = asyncio.create_task(sockets.authenticate_client(near, ours))
        server = asyncio.create_task(sockets.authenticate_server(far, theirs))
        await asyncio.wait([client, server], timeout=10)
        for task, end in ((client, near), (server, far)):
            if task.done() and task.exception() is not None:
                end.close()  # as those do who call these functions
        found = await asyncio.gather(client, server, return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException):
                near.close()
                far.close()
                raise error
        return near, far

    return asyncio.run(run())


def client(secret: bytes = SECRET, rank: int = 3, encrypts: bool = True) -> Client:
    return Client(secret, Role.SERVER, rank, encrypts=encrypts)


def server(*secrets: bytes, encrypts: bool = True) -> Server:
    return Server(secrets or [SECRET], bytes(16), [Role.SERVER], encrypts=encrypts)


def test_the_handshake_runs_inside_and_bytes_go_both_ways() -> None:
    theirs = server(OTHER, SECRET)
    near, far = both(client(), theirs)
    assert theirs.secret == SECRET
    assert theirs.hello is not None
    assert theirs.hello.rank == 3
    for end, other in ((near, far), (far, near)):
        assert end.send(b"gradient") == 8
        assert other.recv(100) == b"gradient"
        with pytest.raises(BlockingIOError):
            other.recv(100)
        with end.dup() as copy:
            assert copy.send(memoryview(b"again")) == 5
        place = bytearray(10)
        assert other.recv_into(memoryview(place)[2:]) == 5
        assert place == b"\0\0again\0\0\0"
    near.shutdown(socket.SHUT_WR)
    assert far.recv(10) == b""
    near.close()
    far.close()


def test_sendall_waits_for_room_and_at_most_its_time() -> None:
    near, far = both(client(), server())
    data = bytes(range(256)) * 20_000
    found: list[bytes] = []

    def read() -> None:
        while sum(map(len, found)) < len(data):
            try:
                found.append(far.recv(65536))
            except BlockingIOError:
                time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    near.settimeout(10)
    near.sendall(data)
    reader.join(10)
    assert b"".join(found) == data
    near.settimeout(0.1)
    with pytest.raises(TimeoutError):
        near.sendall(data)
    near.close()
    far.close()


def test_a_wrong_secret_is_told_to_both() -> None:
    theirs = server(OTHER)
    with pytest.raises(HandshakeRefused, match="SHOAL_SECRET") as refused:
        both(client(), theirs)
    assert refused.value.refusal == Refusal.WRONG_SECRET
    assert theirs.refusal is not None
    assert theirs.refusal.refusal == Refusal.WRONG_SECRET
    assert theirs.hello is not None
    assert theirs.hello.rank == 3


@pytest.mark.parametrize("client_encrypts", [True, False])
def test_one_who_alone_encrypts_or_does_not_is_told(client_encrypts: bool) -> None:
    theirs = server(encrypts=not client_encrypts)
    with pytest.raises(HandshakeRefused, match="SHOAL_TLS") as refused:
        both(client(encrypts=client_encrypts), theirs)
    assert refused.value.refusal == Refusal.ENCRYPTION
    assert theirs.refusal is not None
    assert theirs.refusal.refusal == Refusal.ENCRYPTION
    assert theirs.hello is not None
    assert theirs.hello.rank == 3


def test_the_key_of_one_rank_does_not_do_for_another() -> None:
    """Also one who holds the secret calls under one name."""
    ours = client(rank=3)
    ours.rank = 4
    with pytest.raises(HandshakeRefused) as refused:
        both(ours, server())
    assert refused.value.refusal == Refusal.WRONG_ROLE


def test_bytes_that_are_changed_are_an_error_that_says_so() -> None:
    near, far = both(client(), server())
    seen, hidden = socket.socketpair()
    try:
        assert near.tls is not None
        assert near.tls.send(seen.fileno(), b"gradient") == 8
        record = bytearray(hidden.recv(1000))
        assert b"gradient" not in record
        record[-1] ^= 1
        socket.socket.send(near, record)
        with pytest.raises(Damaged, match="changed on its way"):
            far.recv(100)
        with pytest.raises(Damaged):
            far.recv(100)
    finally:
        for end in (near, far, seen, hidden):
            end.close()


def test_a_record_that_is_sent_twice_is_an_error() -> None:
    near, far = both(client(), server())
    seen, hidden = socket.socketpair()
    try:
        assert near.tls is not None
        near.tls.send(seen.fileno(), b"gradient")
        record = hidden.recv(1000)
        socket.socket.send(near, record)
        assert far.recv(100) == b"gradient"
        socket.socket.send(near, record)
        with pytest.raises(Damaged):
            far.recv(100)
    finally:
        for end in (near, far, seen, hidden):
            end.close()


# --- Strangers at a server that encrypts ---


def wait_for_count(count_of: Callable[[], int]) -> None:
    deadline = time.monotonic() + 5
    while count_of() != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_noise_at_a_server_that_encrypts_is_noise() -> None:
    with running(encrypts=True, stranger=0.5) as front:
        with socket.create_connection(front.address, 5) as link:
            link.sendall(b"GET / HTTP/1.1\r\nHost: a server of another kind, surely\r\n\r\n".ljust(64))
            assert link.recv(1) == b""
        wait_for_count(lambda: front.statistics().get("refused_not_shoal", 0))
        with socket.create_connection(front.address, 5) as link:
            link.sendall(b"\x16\x03\x01\x02")
            assert link.recv(1) == b""
        wait_for_count(lambda: front.statistics().get("refused_silent", 0))


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00", None], ids=["nothing", "a beginning", "an identity"])
def test_nothing_is_kept_of_one_who_is_dropped_in_the_handshake(said: bytes | None) -> None:
    async def run() -> weakref.ref[Connection]:
        near, far = socket.socketpair()
        with near, Connection.adopt(sockets.watched(far)) as connection:
            near.setblocking(False)
            if said is None:
                name = identity(SECRET, Role.SERVER, 1)
                _native.Tls.client(name.decode(), key(SECRET, name)).handshake(near.fileno())
            else:
                near.send(said)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.begin_server([SECRET]), 0.05)
            assert connection.caller == (None if said is not None else (Role.SERVER, 1))
            return weakref.ref(connection)

    dropped = asyncio.run(run())
    gc.collect()
    assert dropped() is None


@pytest.mark.parametrize("encrypts", [True, False])
def test_another_programs_tls_is_noise(encrypts: bool) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with running(encrypts=encrypts) as front, socket.create_connection(front.address, 5) as link:
        with pytest.raises(OSError), context.wrap_socket(link):  # noqa: PT011
            pass
        wait_for_count(lambda: front.statistics().get("refused_not_shoal", 0))


def test_another_program_where_an_encrypting_server_should_be_is_not_shoal() -> None:
    async def call(address: Address) -> None:
        link = await sockets.connect_as(client(), address, [], 5.0)
        link.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            accepted, _ = listener.accept()
            with accepted, contextlib.suppress(ConnectionResetError):
                accepted.sendall(b"220 mail.example.com ESMTP\r\n")
                accepted.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(HandshakeRefused, match="another program"):
            asyncio.run(call(Address("127.0.0.1", listener.getsockname()[1])))
        thread.join(5)


def test_a_rank_may_be_far_above_those_that_exist() -> None:
    """The identity has room for every rank that a HELLO has room for."""
    tls = _native.Tls.client(identity(SECRET, Role.MEASURE, 2**32 - 1).decode(), bytes(32))
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        assert tls.handshake(near.fileno()) == "wants_input"
        assert caller(far.recv(1000)) == (Role.MEASURE, 2**32 - 1)
