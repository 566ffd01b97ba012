"""The handshake, byte by byte as in docs/protocol/format.md, Handshake: who may talk, proven with the job's secret.

Two state machines without I/O. Each is fed messages of exactly ``expects`` bytes and answers with the bytes to send:

    client                                server
    start() → HELLO
                                          feed(HELLO) → CHALLENGE
    feed(CHALLENGE) → PROOF
                                          feed(PROOF) → VERDICT
    feed(VERDICT) → nothing

A side is done when ``expects`` is 0. The client raises HandshakeRefused at once; the server first has its answer to send,
so that the client hears why: the caller that sends it then raises its ``refusal``. Neither learns the secret, and a proof
is good for this connection, role, rank and incarnation only.
"""

import hmac
import os
import struct
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import NamedTuple

from shoal.errors import AuthenticationError, ConfigurationError, ShoalError

VERSION = 5
MAGIC = b"SHOAL"
NO_INCARNATION = bytes(16)
HELLO_BYTES = 64
CHALLENGE_BYTES = 64
PROOF_BYTES = 32
VERDICT_BYTES = 40

_HELLO = struct.Struct("<5sBBBII16s32s")
_CHALLENGE = struct.Struct("<5sBB9x16s32s")
_VERDICT = struct.Struct("<B7x32s")


class Role(IntEnum):
    """What a connection is for."""

    CONTROL = 1
    SERVER = 2
    PEER = 3
    MEASURE = 4
    MEMORY = 5


class Refusal(IntEnum):
    """Status of CHALLENGE and VERDICT."""

    WELCOME = 0
    WRONG_VERSION = 1
    WRONG_SECRET = 2
    UNKNOWN_INCARNATION = 3
    WRONG_ROLE = 4
    FULL = 5
    ENCRYPTION = 6


_WHY = {
    Refusal.WRONG_VERSION: f"it does not speak version {VERSION} of Shoal's protocol: install the same version of Shoal everywhere",
    Refusal.WRONG_SECRET: (
        "its secret is not ours: set SHOAL_SECRET or SHOAL_SECRET_FILE to the same on every rank and server"
    ),
    Refusal.UNKNOWN_INCARNATION: "it does not know this job (another one runs there, or this one has ended)",
    Refusal.WRONG_ROLE: "it is another part of Shoal than expected: check the addresses in SHOAL_SERVERS and SHOAL_RENDEZVOUS",
    Refusal.ENCRYPTION: "only one of the two encrypts: set SHOAL_TLS to the same on every rank and server",
    Refusal.FULL: "it has too many connections: try again later, or start another server",
}


class HandshakeRefused(AuthenticationError):
    """One side did not accept the other. ``refusal`` is None if the other does not speak Shoal at all."""

    def __init__(self, message: str, refusal: Refusal | None) -> None:
        super().__init__(message)
        self.refusal = refusal

    @staticmethod
    def because(refusal: Refusal) -> "HandshakeRefused":
        return HandshakeRefused(_WHY[refusal], refusal)

    @staticmethod
    def of_version(theirs: int) -> "HandshakeRefused":
        """Says which versions of the protocol met, and where Shoal is to be upgraded."""
        place = "there" if theirs < VERSION else "here"
        return HandshakeRefused(
            f"it speaks version {theirs} of Shoal's protocol, and this side version {VERSION}: upgrade Shoal {place}, so that it is "
            "the same everywhere",
            Refusal.WRONG_VERSION,
        )


def refusal_error(refused: HandshakeRefused, called: str) -> ShoalError:
    """The exception for a handshake that failed, which says who called whom."""
    if refused.refusal in (Refusal.WRONG_SECRET, Refusal.UNKNOWN_INCARNATION):
        return AuthenticationError(f"{called}, but {refused}")
    if refused.refusal == Refusal.FULL:
        return ShoalError(f"{called}, but {refused}")
    return ConfigurationError(f"{called}, but {refused}")


class Hello(NamedTuple):
    """Who calls, and for what."""

    role: Role
    lane: int
    rank: int
    incarnation: bytes
    nonce: bytes

    def pack(self) -> bytes:
        return _HELLO.pack(MAGIC, VERSION, self.role, self.lane, self.rank, 0, self.incarnation, self.nonce)


class Client:
    """The side that connected. ``incarnation``: 16 bytes, all zeros while a rank joins. ``nonce`` only for tests.

    ``encrypts``: the connection is to be encrypted first, by whoever does the sending.
    """

    def __init__(
        self,
        secret: bytes,
        role: Role,
        rank: int,
        *,
        lane: int = 0,
        incarnation: bytes = NO_INCARNATION,
        encrypts: bool = False,
        nonce: bytes | None = None,
    ) -> None:
        self.secret, self.role, self.rank, self.encrypts = secret, role, rank, encrypts
        self._key = job_key(secret, incarnation)
        self._says = Hello(role, lane, rank, incarnation, nonce or os.urandom(32))
        self._hello = self._says.pack()
        self._challenge = b""
        self._proof = b""
        self.expects = CHALLENGE_BYTES
        # Known once the challenge is here: the 16 bytes that name the server, wherever it is reached.
        self.server_id: bytes | None = None

    def __copy__(self) -> "Client":
        """The same caller on another connection, with a nonce of its own. Only before it has begun."""
        says = self._says
        return Client(
            self.secret, says.role, says.rank, lane=says.lane, incarnation=says.incarnation, encrypts=self.encrypts
        )

    def start(self) -> bytes:
        return self._hello

    def feed(self, message: bytes) -> bytes:
        """Takes CHALLENGE, then VERDICT. Raises HandshakeRefused."""
        return self._on_verdict(message) if self._proof else self._on_challenge(message)

    def _on_challenge(self, challenge: bytes) -> bytes:
        magic, version, status, server_id, _ = _CHALLENGE.unpack(challenge)
        if magic != MAGIC:
            raise HandshakeRefused("what answers there is not Shoal: another program has this port", None)
        if version != VERSION:
            raise HandshakeRefused.of_version(version)
        _raise_if_refused(status)
        self.server_id = server_id
        self._challenge = challenge
        self._proof = client_proof(self._key, self._hello, challenge)
        self.expects = VERDICT_BYTES
        return self._proof

    def _on_verdict(self, verdict: bytes) -> bytes:
        status, proof = _VERDICT.unpack(verdict)
        _raise_if_refused(status)
        if not hmac.compare_digest(proof, server_proof(self._key, self._hello, self._challenge, self._proof)):
            raise HandshakeRefused.because(Refusal.WRONG_SECRET)
        self.expects = 0
        return b""


class Server:
    """The side that accepted.

    ``secrets``: any of them is good enough. ``incarnation``: the one that is served; None: any. ``nonce`` only for
    tests. ``encrypts``: only those are let in whose connection is encrypted, for whom ``encrypted_for`` is called. After ``feed`` look at ``refusal``: when it is set, the answer is still to be sent, then the link is closed.
    """

    def __init__(
        self,
        secrets: Sequence[bytes],
        server_id: bytes,
        roles: Collection[Role],
        *,
        incarnation: bytes | None = None,
        encrypts: bool = False,
        nonce: bytes | None = None,
    ) -> None:
        self.secrets = secrets
        self.encrypts = encrypts
        self._encrypted_for: tuple[Role, int] | None = None
        self._server_id = server_id
        self._roles = roles
        self._incarnation = incarnation
        self._nonce = nonce or os.urandom(32)
        self._hello_bytes = b""
        self._challenge = b""
        self.expects = HELLO_BYTES
        # Who calls: known after HELLO, to be believed only when done.
        self.hello: Hello | None = None
        # The secret that the client holds, once done.
        self.secret: bytes | None = None
        self.refusal: HandshakeRefused | None = None

    def encrypted_for(self, role: Role, rank: int) -> None:
        """The connection is encrypted with the key of this role and rank."""
        self._encrypted_for = (role, rank)

    def refuse(self, refusal: Refusal, role: Role, rank: int) -> bytes:
        """The CHALLENGE for one who has said who it is, but in other words than a HELLO."""
        self.hello = Hello(role, 0, rank, NO_INCARNATION, bytes(32))
        return self._challenge_with(refusal)

    def feed(self, message: bytes) -> bytes:
        """Takes HELLO, then PROOF. Raises HandshakeRefused only for what deserves no answer: bytes that are not ours."""
        return self._on_proof(message) if self._challenge else self._on_hello(message)

    def _on_hello(self, data: bytes) -> bytes:
        magic, version, role, lane, rank, reserved, incarnation, nonce = _HELLO.unpack(data)
        if magic != MAGIC:
            raise HandshakeRefused("what called does not speak Shoal", None)
        status = Refusal.WELCOME
        if version != VERSION:
            status = Refusal.WRONG_VERSION
        elif role not in [int(known) for known in self._roles] or reserved != 0:
            status = Refusal.WRONG_ROLE
        else:
            self.hello = Hello(Role(role), lane, rank, incarnation, nonce)
            status = self._judge_encryption(Role(role), rank)
        self._hello_bytes = data
        challenge = self._challenge_with(status)
        if status == Refusal.WRONG_VERSION:
            self.refusal = HandshakeRefused.of_version(version)
        return challenge

    def _judge_encryption(self, role: Role, rank: int) -> Refusal:
        if not self.encrypts:
            return Refusal.WELCOME
        if self._encrypted_for is None:
            return Refusal.ENCRYPTION
        return Refusal.WELCOME if self._encrypted_for == (role, rank) else Refusal.WRONG_ROLE

    def _challenge_with(self, status: Refusal) -> bytes:
        self._challenge = _CHALLENGE.pack(MAGIC, VERSION, status, self._server_id, self._nonce)
        self._end_or_expect(status, PROOF_BYTES)
        return self._challenge

    def _on_proof(self, proof: bytes) -> bytes:
        assert self.hello is not None, "a proof comes after a welcome hello"
        status, answer = Refusal.WRONG_SECRET, bytes(32)
        for secret in self.secrets:
            key = job_key(secret, self.hello.incarnation)
            if hmac.compare_digest(proof, client_proof(key, self._hello_bytes, self._challenge)):
                status, answer = Refusal.WELCOME, server_proof(key, self._hello_bytes, self._challenge, proof)
                self.secret = secret
                break
        if status == Refusal.WELCOME and self._incarnation not in (None, self.hello.incarnation):
            status, answer = Refusal.UNKNOWN_INCARNATION, bytes(32)
        self._end_or_expect(status, 0)
        return _VERDICT.pack(status, answer)

    def _end_or_expect(self, status: Refusal, length: int) -> None:
        self.expects = length if status == Refusal.WELCOME else 0
        self.refusal = None if status == Refusal.WELCOME else HandshakeRefused.because(status)


def job_key(secret: bytes, incarnation: bytes) -> bytes:
    """K of docs/protocol/format.md, Handshake."""
    return _hmac(secret, b"shoal key 1" + incarnation)


def client_proof(key: bytes, hello: bytes, challenge: bytes) -> bytes:
    return _hmac(key, b"client" + hello + challenge)


def server_proof(key: bytes, hello: bytes, challenge: bytes, proof: bytes) -> bytes:
    return _hmac(key, b"server" + hello + challenge + proof)


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _raise_if_refused(status: int) -> None:
    if status == Refusal.WELCOME:
        return
    if status not in [int(known) for known in Refusal]:
        raise HandshakeRefused(
            f"it refused the connection for a reason that this version does not know ({status})", None
        )
    raise HandshakeRefused.because(Refusal(status))
