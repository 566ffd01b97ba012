"""The JSON messages that come before frames: docs/protocol/format.md, Messages.

A message is a length (u32, at most 1 MiB) and that many bytes of UTF-8: an object whose ``type`` is the message's name.
What came off the network is checked field by field before it is used; unknown fields are ignored. No I/O here.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shoal.config.launchers import MOST_RANKS
from shoal.errors import PeerLost, ShoalError, error_from_name, name_of

LENGTH_BYTES = 4
LONGEST_MESSAGE = 1024 * 1024
LONGEST_TEXT = 16 * 1024

_T = TypeVar("_T")

Fields = Mapping[str, Any]


class MessageError(ShoalError):
    """A message that is not as docs/protocol/format.md says. The text names the message and the field."""


def pack(kind: str, fields: Fields) -> bytes:
    """The bytes of a message, its length included. Raises MessageError if it is too long."""
    body = json.dumps({"type": kind, **fields}, separators=(",", ":"), ensure_ascii=False).encode()
    if len(body) > LONGEST_MESSAGE:
        raise MessageError(
            f"message '{kind}' would have {len(body)} bytes, more than {LONGEST_MESSAGE}: too many ranks"
        )
    return struct.pack("<I", len(body)) + body


def unpack_length(data: bytes) -> int:
    """The length of the message that follows these 4 bytes. Raises MessageError."""
    length = int(struct.unpack("<I", data)[0])
    if length > LONGEST_MESSAGE:
        raise MessageError(f"a message of {length} bytes was announced, more than {LONGEST_MESSAGE}")
    return length


def unpack(data: bytes) -> "Message":
    """The message in these bytes, without its length. Raises MessageError."""
    try:
        body = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a message is not JSON: {error}") from None
    if not isinstance(body, dict) or not _can_be_written(body.get("type")):
        raise MessageError("a message is not an object with a type")
    return Message(body["type"], body)


class Message:
    """A message that came in. Every getter checks one field and raises MessageError naming it."""

    def __init__(self, kind: str, fields: Fields) -> None:
        self.kind = kind
        self._fields = fields

    def integer(self, name: str, lowest: int, highest: int) -> int:
        return self._checked(name, lambda value: _integer(value, lowest, highest))

    def text(self, name: str, longest: int = LONGEST_TEXT) -> str:
        return self._checked(name, lambda value: _text(value, longest))

    def flag(self, name: str) -> bool:
        return self._checked(name, _flag)

    def identity(self, name: str) -> bytes:
        """16 bytes in hexadecimal."""
        return self._checked(name, _identity)

    def address(self, name: str) -> tuple[str, int]:
        """``[ip, port]``."""
        return self._checked(name, _address)

    def texts(self, name: str, count: int | None = None) -> list[str]:
        return self._checked(name, lambda value: [_text(item, LONGEST_TEXT) for item in _list(value, count)])

    def integers(self, name: str, lowest: int, highest: int, count: int | None = None) -> list[int]:
        return self._checked(name, lambda value: [_integer(item, lowest, highest) for item in _list(value, count)])

    def text_map(self, name: str) -> dict[str, str]:
        return self._checked(name, _text_map)

    def message(self, name: str) -> "Message":
        """An object, to be checked in the same way."""
        return self._checked(name, lambda value: Message(f"{self.kind}.{name}", _object(value)))

    def messages(self, name: str, count: int | None = None) -> "list[Message]":
        """A list of objects, to be checked in the same way."""
        return self._checked(
            name, lambda value: [Message(f"{self.kind}.{name}", _object(item)) for item in _list(value, count)]
        )

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def is_null(self, name: str) -> bool:
        """For a field that may be null but must be there."""
        return self._checked(name, lambda value: value is None)

    def _checked(self, name: str, check: Callable[[Any], _T]) -> _T:
        if name not in self._fields:
            raise MessageError(f"message '{self.kind}' lacks the field '{name}'")
        try:
            return check(self._fields[name])
        except ValueError as error:
            raise MessageError(f"message '{self.kind}': the field '{name}' {error}") from None


def pack_refused(error: ShoalError) -> bytes:
    """The rank and host of a PeerLost go along, for whom they mean something."""
    about = {"rank": error.rank, "host": error.host} if isinstance(error, PeerLost) else {}
    return pack("refused", {"error": name_of(error), "message": str(error)[:LONGEST_TEXT], **about})


def error_of(refused: Message) -> ShoalError:
    """The exception that a ``refused`` message stands for."""
    name, text = refused.text("error"), refused.text("message")
    if "rank" not in refused or "host" not in refused:
        return error_from_name(name, text)
    return error_from_name(name, text, refused.integer("rank", -1, MOST_RANKS), refused.text("host"))


def _integer(value: Any, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"is not a whole number from {lowest} to {highest}")
    return value


def _text(value: Any, longest: int) -> str:
    if not _can_be_written(value) or len(value) > longest:
        raise ValueError(f"is not a text of at most {longest} characters")
    return str(value)


def _can_be_written(value: Any) -> bool:
    r"""JSON's \u escapes can say half of a pair of surrogates, which nobody could pass on, log or hand to the core."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")  # noqa: TRY004 (a wrong field, not a wrong call)
    return value


def _identity(value: Any) -> bytes:
    text = _text(value, 32)
    identity = bytes.fromhex(text) if text.isascii() else b""
    if len(identity) != 16 or len(text) != 32:
        raise ValueError("is not 16 bytes in hexadecimal")
    return identity


def _address(value: Any) -> tuple[str, int]:
    host, port = _list(value, 2)
    return _text(host, 256), _integer(port, 1, 65535)


def _list(value: Any, count: int | None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError("is not a list" if count is None else f"is not a list of {count}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("has an entry that is not an object")  # noqa: TRY004 (a wrong field, not a wrong call)
    return value


def _text_map(value: Any) -> dict[str, str]:
    return {_text(name, LONGEST_TEXT): _text(entry, LONGEST_TEXT) for name, entry in _object(value).items()}
