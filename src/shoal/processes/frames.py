"""What the launcher and its agent on another host say to each other, over the standard streams of one ssh connection.

The agent begins with a line that every version reads: ``shoal-agent `` and JSON, of which ``version`` is Shoal's. From then
on both send frames: a kind (1 byte), the number of a process (4), a length (4, big-endian), and so many bytes. Numbers are the
launcher's. What stands in a payload is JSON, but for output, which is what a process has written.
"""

import enum
import json
import struct
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

HELLO = b"shoal-agent "
# No environment is larger: the kernel does not take more than a quarter of a stack of 8 MiB.
LONGEST_PAYLOAD = 16 * 1024 * 1024

_HEADER = struct.Struct("!BII")


class Kind(enum.IntEnum):
    """What a frame says. The first seven go to the agent, the others come from it; one goes both ways."""

    START = 1  # a rank: the arguments of the agent's ``start``
    START_SERVER = 2  # a dedicated server: the arguments of ``start_server``
    SIGNAL = 3  # its number
    KILL = 4  # the process and all that it has started
    FINISH = 5  # it has ended: end what it has left behind
    STILL_HERE = (
        6  # nothing but that the launcher lives. The agent answers with it whatever it was asked, one for several
    )
    PAUSE = 7  # the launcher stops for a while (Ctrl-Z): its silence means nothing until the next frame
    STDOUT = 8  # nothing in it: the stream has ended
    STDERR = 9
    LISTENS = 10  # a server's host:port
    NOT_READY = 11  # why a server does not listen
    EXIT = 12  # its exit code, as of Process.exit


class Frame(NamedTuple):
    kind: Kind
    process: int
    payload: bytes

    @property
    def value(self) -> Any:
        """What a payload of JSON says. Raises ValueError."""
        return json.loads(self.payload)


def encode(kind: Kind, process: int = 0, value: Any = None) -> bytes:
    """A frame whose payload is ``value`` as JSON."""
    # Bytes of the environment that are no UTF-8 are lone surrogates here, and stay them in JSON of ASCII characters.
    return encode_bytes(kind, process, b"" if value is None else json.dumps(value).encode("ascii"))


def encode_bytes(kind: Kind, process: int, payload: bytes) -> bytes:
    return _HEADER.pack(kind, process, len(payload)) + payload


def frames_of(stream: IO[bytes]) -> Iterator[Frame]:
    """Those that come, to the end of a stream that waits. Raises ValueError for what is no frame."""
    while len(header := stream.read(_HEADER.size)) == _HEADER.size:
        kind, process, length = _HEADER.unpack(header)
        if length > LONGEST_PAYLOAD:
            raise ValueError(f"a frame of {length} bytes")
        payload = stream.read(length)
        if len(payload) < length:
            return
        yield Frame(Kind(kind), process, payload)
