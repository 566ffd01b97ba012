"""handshake.py: whoever does not hold the secret, or changes what is said, gets nothing but a refusal."""

import hmac

from harness import Input, main

from shoal.net.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    VERDICT_BYTES,
    VERSION,
    Client,
    HandshakeRefused,
    Role,
    Server,
)

SECRET = b"the secret of the handshake's fuzzer"
INCARNATION = bytes(range(16))
ROLES = [Role.CONTROL, Role.SERVER, Role.MEASURE]


def one_input(data: bytes) -> None:
    given = Input(data)
    [_from_a_stranger, _to_a_stranger, _changed_on_the_way][given.below(3)](given)


def _from_a_stranger(given: Input) -> None:
    """Any bytes to a server: a HELLO may be right, a proof cannot be."""
    server = Server([SECRET], bytes(16), ROLES, nonce=bytes(32))
    hello = given.bytes(HELLO_BYTES).ljust(HELLO_BYTES, b"\0")
    if given.below(2):
        hello = b"SHOAL" + bytes([VERSION]) + hello[6:]
    try:
        assert len(server.feed(hello)) == CHALLENGE_BYTES
        if server.expects:
            assert server.expects == PROOF_BYTES
            assert len(server.feed(given.bytes(PROOF_BYTES).ljust(PROOF_BYTES, b"\0"))) == VERDICT_BYTES
    except HandshakeRefused:
        return
    assert server.refusal is not None
    assert server.secret is None
    assert server.expects == 0


def _to_a_stranger(given: Input) -> None:
    """Any bytes to a client: what does not hold the secret is not believed."""
    client = Client(SECRET, Role.SERVER, 3, incarnation=INCARNATION, nonce=bytes(32))
    challenge = given.bytes(CHALLENGE_BYTES).ljust(CHALLENGE_BYTES, b"\0")
    if given.below(2):
        challenge = b"SHOAL" + bytes([VERSION, 0]) + challenge[7:]
    try:
        client.feed(challenge)
        client.feed(given.bytes(VERDICT_BYTES).ljust(VERDICT_BYTES, b"\0"))
    except HandshakeRefused:
        return
    raise AssertionError("a client believed a stranger")


def _changed_on_the_way(given: Input) -> None:
    """Both sides hold the secret, and someone between them changes bytes: neither is done unless nothing was changed."""
    client = Client(SECRET, Role.SERVER, 3, incarnation=INCARNATION, nonce=bytes([1] * 32))
    server = Server([b"another secret, tried first", SECRET], bytes(16), ROLES, nonce=bytes([2] * 32))
    changed = False

    def over_the_wire(message: bytes) -> bytes:
        nonlocal changed
        arrived = bytearray(message)
        for _ in range(given.below(3)):
            arrived[given.byte() % len(arrived)] ^= given.byte()
        changed = changed or not hmac.compare_digest(bytes(arrived), message)
        return bytes(arrived)

    try:
        message = client.start()
        while client.expects:
            answer = server.feed(over_the_wire(message))
            message = client.feed(over_the_wire(answer))
            if server.refusal is not None:
                raise server.refusal  # it has hung up
    except HandshakeRefused:
        assert changed
        return
    # Of VERDICT, 7 bytes are reserved: they prove nothing.
    assert server.secret == SECRET


if __name__ == "__main__":
    main(one_input)
