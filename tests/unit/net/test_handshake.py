"""handshake.py: the bytes of docs/protocol/format.md, Handshake, and who gets through."""

import hashlib
import hmac

import pytest

from shoal.errors import AuthenticationError
from shoal.net.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    NO_INCARNATION,
    PROOF_BYTES,
    VERDICT_BYTES,
    VERSION,
    Client,
    HandshakeRefused,
    Refusal,
    Role,
    Server,
)

SECRET = b"a secret for the handshake's test"
INCARNATION = bytes(range(16))
CLIENT_NONCE = bytes(range(100, 132))
SERVER_NONCE = bytes(range(200, 232))
SERVER_ID = b"0123456789abcdef"
EVERY_ROLE = [Role.CONTROL, Role.SERVER, Role.PEER]


def client(secret: bytes = SECRET, role: Role = Role.SERVER) -> Client:
    return Client(secret, role, 7, lane=2, incarnation=INCARNATION, nonce=CLIENT_NONCE)


def server(secrets: list[bytes] | None = None, incarnation: bytes | None = None) -> Server:
    return Server(secrets or [SECRET], SERVER_ID, EVERY_ROLE, incarnation=incarnation, nonce=SERVER_NONCE)


def test_the_bytes_are_those_of_the_page() -> None:
    hello = b"SHOAL" + bytes([5, 2, 2]) + bytes([7, 0, 0, 0]) + bytes(4) + INCARNATION + CLIENT_NONCE
    challenge = b"SHOAL" + bytes([5, 0]) + bytes(9) + SERVER_ID + SERVER_NONCE
    key = hmac.new(SECRET, b"shoal key 1" + INCARNATION, hashlib.sha256).digest()
    proof = hmac.new(key, b"client" + hello + challenge, hashlib.sha256).digest()
    verdict = bytes(8) + hmac.new(key, b"server" + hello + challenge + proof, hashlib.sha256).digest()

    ours, theirs = client(), server()
    assert ours.start() == hello
    assert theirs.feed(hello) == challenge
    assert ours.feed(challenge) == proof
    assert theirs.feed(proof) == verdict
    assert ours.feed(verdict) == b""
    assert (ours.expects, theirs.expects) == (0, 0)
    assert ours.server_id == SERVER_ID
    assert theirs.hello is not None
    assert (theirs.hello.role, theirs.hello.lane, theirs.hello.rank) == (Role.SERVER, 2, 7)
    assert theirs.hello.incarnation == INCARNATION
    assert theirs.secret == SECRET


def test_golden_bytes() -> None:
    """Fixed once and for all: a change here is another version of the protocol."""
    ours, theirs = client(), server()
    proof = ours.feed(theirs.feed(ours.start()))
    verdict = theirs.feed(proof)
    assert proof.hex() == "06835ef8f8ee5dd8eae4e5d9f7df8970197fbfc133703ce09365109b260d0fe7"
    assert verdict.hex() == "00000000000000002434bed44a8d41e1899daba3dff4f38bf51712dc905f742771db6e5b6b2b52e1"


def test_lengths() -> None:
    ours, theirs = client(), server()
    hello = ours.start()
    assert (len(hello), theirs.expects) == (HELLO_BYTES, HELLO_BYTES)
    challenge = theirs.feed(hello)
    assert (len(challenge), ours.expects) == (CHALLENGE_BYTES, CHALLENGE_BYTES)
    proof = ours.feed(challenge)
    assert (len(proof), theirs.expects) == (PROOF_BYTES, PROOF_BYTES)
    assert (len(theirs.feed(proof)), ours.expects) == (VERDICT_BYTES, VERDICT_BYTES)


def run(ours: Client, theirs: Server) -> None:
    """Until either side has had enough."""
    message = ours.start()
    while ours.expects:
        answer = theirs.feed(message)
        if ours.expects:
            message = ours.feed(answer)


def test_a_wrong_secret_is_told_to_both_and_what_to_do() -> None:
    theirs = server([b"another secret altogether"])
    with pytest.raises(AuthenticationError, match="SHOAL_SECRET") as caught:
        run(client(), theirs)
    assert isinstance(caught.value, HandshakeRefused)
    assert caught.value.refusal == Refusal.WRONG_SECRET
    assert theirs.refusal is not None
    assert theirs.refusal.refusal == Refusal.WRONG_SECRET
    assert theirs.secret is None


def test_any_of_a_servers_secrets_will_do() -> None:
    theirs = server([b"another secret altogether", SECRET])
    run(client(), theirs)
    assert theirs.secret == SECRET
    assert theirs.refusal is None


def test_a_server_that_does_not_hold_the_secret_is_found_out() -> None:
    """It accepts every proof, but cannot make its own."""
    impostor = server([b"another secret altogether"])
    ours = client()
    ours.feed(impostor.feed(ours.start()))
    with pytest.raises(HandshakeRefused) as caught:
        ours.feed(bytes(8) + bytes(32))
    assert caught.value.refusal == Refusal.WRONG_SECRET


def test_an_unknown_incarnation_is_refused() -> None:
    with pytest.raises(HandshakeRefused) as caught:
        run(client(), server(incarnation=NO_INCARNATION))
    assert caught.value.refusal == Refusal.UNKNOWN_INCARNATION
    run(client(), server(incarnation=INCARNATION))


def test_another_role_is_refused() -> None:
    theirs = Server([SECRET], SERVER_ID, [Role.CONTROL])
    with pytest.raises(HandshakeRefused) as caught:
        run(client(), theirs)
    assert caught.value.refusal == Refusal.WRONG_ROLE


@pytest.mark.parametrize(
    ("theirs_is", "place"), [(VERSION - 1, "upgrade Shoal there"), (VERSION + 1, "upgrade Shoal here")]
)
def test_another_version_is_refused_by_either_side_which_says_both_and_where_to_upgrade(
    theirs_is: int, place: str
) -> None:
    ours, theirs = client(), server()
    hello = bytearray(ours.start())
    hello[5] = theirs_is
    theirs.feed(bytes(hello))
    assert theirs.refusal is not None
    assert theirs.expects == 0

    ours = client()
    challenge = bytearray(server().feed(ours.start()))
    challenge[5] = theirs_is
    with pytest.raises(HandshakeRefused) as caught:
        ours.feed(bytes(challenge))
    for refused in (caught.value, theirs.refusal):
        assert refused.refusal == Refusal.WRONG_VERSION
        assert f"version {theirs_is} of Shoal's protocol, and this side version {VERSION}" in str(refused)
        assert place in str(refused)


def test_other_programs_are_told_from_shoal() -> None:
    with pytest.raises(HandshakeRefused, match="another program"):
        client().feed(b"HTTP/1.1 400 Bad Request".ljust(CHALLENGE_BYTES))
    with pytest.raises(HandshakeRefused, match="does not speak Shoal"):
        server().feed(b"GET / HTTP/1.1".ljust(HELLO_BYTES))


def test_an_unknown_status_is_refused() -> None:
    challenge = bytearray(server().feed(client().start()))
    challenge[6] = 99
    with pytest.raises(HandshakeRefused, match="99"):
        client().feed(bytes(challenge))


@pytest.mark.parametrize("byte", range(6, HELLO_BYTES))
def test_a_hello_changed_on_its_way_gives_no_proof(byte: int) -> None:
    """Role, lane, rank, incarnation and nonce are inside both proofs."""
    ours, theirs = client(), server()
    changed = bytearray(ours.start())
    changed[byte] ^= 1
    challenge = theirs.feed(bytes(changed))
    if theirs.refusal is None:
        theirs.feed(ours.feed(challenge))
    assert theirs.refusal is not None


def test_a_proof_cannot_be_replayed_or_reflected() -> None:
    ours, theirs = client(), server()
    proof = ours.feed(theirs.feed(ours.start()))

    fresh = Server([SECRET], SERVER_ID, EVERY_ROLE)
    fresh.feed(ours.start())
    fresh.feed(proof)
    assert fresh.refusal is not None

    reflected = client()
    reflected.feed(server().feed(reflected.start()))
    with pytest.raises(HandshakeRefused):
        reflected.feed(bytes(8) + proof)


def test_nonces_are_fresh() -> None:
    hellos = {Client(SECRET, Role.PEER, 0).start() for _ in range(8)}
    assert len(hellos) == 8
