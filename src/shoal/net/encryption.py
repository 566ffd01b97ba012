"""Encryption of a job's connections, SHOAL_TLS=psk: docs/protocol/format.md, Encryption.

TLS 1.3 with a key that both sides make from the job's secret, and a fresh X25519 exchange for each connection. What runs
inside, the handshake included, is what runs in the clear without it. The work is done by OpenSSL, found at run
time by the native core, which goes on with the same state when a connection is handed to it.
"""

import asyncio
import contextlib
import errno
import hmac
import re
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shoal import _native
from shoal.errors import ConfigurationError
from shoal.net.handshake import MAGIC, HandshakeRefused, Refusal, Role

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# The first bytes of a TLS client, up to the version that all of them claim.
_CLIENT_HELLO = b"\x16\x03"
_RECORD_HEADER_BYTES = 5
_LARGEST_RECORD = 16384

_IDENTITY = re.compile(rb"shoal 1 ([1-9]) (0|[1-9][0-9]{0,9}) ([0-9a-f]{32})")


class Damaged(ConnectionError):
    """What came over an encrypted connection is not what the other side sent."""


class Caller(NamedTuple):
    """Who says that it calls: to be believed when the handshake is done."""

    role: Role
    rank: int


def require() -> None:
    """Raises ConfigurationError if this machine cannot encrypt."""
    # Python's own OpenSSL, where it has one, is then the one that is used: two in a process are one too many.
    with contextlib.suppress(ImportError):
        import ssl  # noqa: F401
    try:
        _native.Tls.version()
    except RuntimeError as error:
        raise ConfigurationError(
            f"SHOAL_TLS=psk cannot be had on host {socket.gethostname()}: {error}; install it (libssl3, openssl-libs), or set "
            "SHOAL_TLS=off everywhere"
        ) from None


def identity(secret: bytes, role: Role, rank: int) -> bytes:
    """What names the key in the clear. It does not help to guess the secret more than a proof in the clear would."""
    name = hmac.digest(secret, b"shoal psk name 1", "sha256")[:16]
    return b"shoal 1 %d %d %s" % (role, rank, name.hex().encode())


def key(secret: bytes, of: bytes) -> bytes:
    """The key of this identity."""
    return hmac.digest(secret, b"shoal psk 1" + of, "sha256")


def caller(of: bytes) -> Caller | None:
    """Who an identity, or a message with one somewhere inside, says that it is."""
    found = _IDENTITY.search(of)
    if found is None or int(found[1]) not in [int(role) for role in Role]:
        return None
    return Caller(Role(int(found[1])), int(found[2]))


def is_client_hello(data: bytes) -> bool:
    return data.startswith(_CLIENT_HELLO)


def rest_of_record(data: bytes) -> int:
    """How many bytes of a record are missing, of which these are the first."""
    length = int.from_bytes(data[3:_RECORD_HEADER_BYTES], "big")
    return max(0, min(length, _LARGEST_RECORD) + _RECORD_HEADER_BYTES - len(data))


class Connection(socket.socket):
    """A stream socket that may be encrypted: from ``begin_client`` or ``begin_server`` on, if they are called.

    Non-blocking, or with a time-out. ``tls`` goes to the native core together with the descriptor.
    """

    tls: _native.Tls | None = None
    caller: Caller | None = None

    @classmethod
    def adopt(cls, other: socket.socket) -> "Connection":
        """The same connection; ``other`` is closed."""
        timeout = other.gettimeout()
        connection = cls(other.family, other.type, other.proto, fileno=other.detach())
        connection.settimeout(timeout)
        return connection

    async def begin_client(self, secret: bytes, role: Role, rank: int) -> None:
        """Raises HandshakeRefused, OSError."""
        name = identity(secret, role, rank)
        self.tls = _native.Tls.client(name.decode(), key(secret, name))
        ended = await self._shake_hands(self.tls)
        if ended == "unencrypted" and self.tls.greeting() == MAGIC:
            raise HandshakeRefused.because(Refusal.ENCRYPTION)
        if ended == "unencrypted":
            raise HandshakeRefused("what answers there is not Shoal: another program has this port", None)
        if ended != "done":
            raise self._refusal(ended, self.tls)

    async def begin_server(self, secrets: Sequence[bytes]) -> bytes:
        """Lets in who holds one of the secrets: ``caller`` says who, and after an error, who it claimed to be.

        Returns what it has read in vain from one who does not encrypt: there is no ``tls`` then. Raises HandshakeRefused,
        OSError.
        """

        # It must not lead back to this object, which holds `tls`: Python's collector does not see into the native core, and
        # who is dropped in the middle of the handshake would stay for ever.
        claimed: list[Caller] = []

        def find_key(name: bytes) -> bytes:
            if (who := caller(name)) is not None:
                claimed.append(who)
                for secret in secrets:
                    if name == identity(secret, *who):
                        return key(secret, name)
            return b""

        self.tls = _native.Tls.server(find_key)
        try:
            ended = await self._shake_hands(self.tls)
        finally:
            self.caller = claimed[-1] if claimed else None
        if ended == "unencrypted":
            greeting = self.tls.greeting()
            self.tls = None
            return greeting
        if ended != "done":
            raise self._refusal(ended, self.tls)
        return b""

    async def _shake_hands(self, tls: _native.Tls) -> str:
        while True:
            step = tls.handshake(self.fileno())
            if step == "wants_input":
                await self._until_ready(for_input=True)
            elif step == "wants_room":
                await self._until_ready(for_input=False)
            elif step == "ended":
                raise ConnectionResetError(errno.ECONNRESET, "connection closed by the other side")
            else:
                return step

    @staticmethod
    def _refusal(ended: str, tls: _native.Tls) -> HandshakeRefused:
        if ended == "wrong_key":
            return HandshakeRefused.because(Refusal.WRONG_SECRET)
        return HandshakeRefused(f"{tls.why()}; it is another program, or another version of Shoal", None)

    async def _until_ready(self, *, for_input: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_reader, loop.remove_reader) if for_input else (loop.add_writer, loop.remove_writer)
        add(self.fileno(), lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            remove(self.fileno())

    # --- What asyncio and this package use of a socket ---

    def send(self, data: "ReadableBuffer", flags: int = 0, /) -> int:
        if self.tls is None:
            return super().send(data, flags)
        with self._named_errors(self.tls):
            return self.tls.send(self.fileno(), bytes(data))

    def sendall(self, data: "ReadableBuffer", flags: int = 0, /) -> None:
        if self.tls is None:
            return super().sendall(data, flags)
        rest, limit = memoryview(data), self.gettimeout()
        deadline = time.monotonic() + (limit or 0.0)
        poll = select.poll()
        poll.register(self, select.POLLOUT)
        while rest:
            try:
                rest = rest[self.send(rest) :]
            except BlockingIOError:
                if limit is not None and time.monotonic() >= deadline:
                    raise TimeoutError(errno.ETIMEDOUT, "timed out") from None
                poll.poll(10)
        return None

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        if self.tls is None:
            return super().recv(bufsize, flags)
        with self._named_errors(self.tls):
            return self.tls.receive(self.fileno(), bufsize)

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        if self.tls is None:
            return super().recv_into(buffer, nbytes, flags)
        view = memoryview(buffer).cast("B")
        data = self.recv(nbytes or len(view))
        view[: len(data)] = data
        return len(data)

    def dup(self) -> "Connection":
        other = super().dup()
        other.tls = self.tls
        return other

    @staticmethod
    @contextlib.contextmanager
    def _named_errors(tls: _native.Tls) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.EBADMSG:
                raise Damaged(errno.EBADMSG, tls.why()) from None
            raise


def hand_over(link: socket.socket) -> _native.Socket:
    """The connection as the native core takes it; ``link`` is closed."""
    tls = link.tls if isinstance(link, Connection) else None
    return _native.Socket(link.detach(), tls)
