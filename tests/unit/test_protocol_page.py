"""The golden bytes that docs/protocol.md prints, against the code that writes them."""

import re
from pathlib import Path

from shoal import _native

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FRAMES = PAGE.split("## 4. Frames")[1].split("\n## ")[0]


def golden_header() -> bytes:
    """The one indented line of hexadecimal words in section 4."""
    lines = re.findall(r"^    ((?:[0-9a-f]{8} ){9}[0-9a-f]{8})$", FRAMES, re.MULTILINE)
    assert len(lines) == 1, "section 4 prints one golden header of ten words"
    return bytes.fromhex(lines[0])


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from its definition: not the code that is tested."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_the_printed_header_is_what_the_core_writes() -> None:
    written = _native.encode_header(
        type=2,
        flags=0,
        dtype=1,
        codec=0,
        epoch=3,
        operation=7,
        offset=65536,
        length=16384,
        credit=0,
        acknowledged=5,
    )
    assert written.hex(" ", 4) == golden_header().hex(" ", 4)


def test_the_printed_check_is_the_crc_that_the_page_names() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    header = golden_header()
    assert int.from_bytes(header[36:], "little") == crc32c(header[:36])


def test_every_field_stands_where_the_table_says() -> None:
    table = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", FRAMES, re.MULTILINE)
    values = {
        "type": 17,
        "flags": 0,
        "dtype": 13,
        "codec": 0,
        "epoch": 0x01020304,
        "operation": 0x0102030405060708,
        "offset": 0x1112131415161718,
        "length": 0x21222324,
        "credit": 0x31323334,
        "acknowledged": 0x41424344,
    }
    header = _native.encode_header(**values)
    assert len(header) == 40
    assert [field for _, _, field in table] == [*values, "check"]
    for offset, size, field in table[:-1]:
        start, end = int(offset), int(offset) + int(size)
        assert int.from_bytes(header[start:end], "little") == values[field], field


def test_the_key_hash_is_the_one_that_the_page_names() -> None:
    # FNV-1a, 128 bits: offset basis and prime from the definition.
    value = 0x6C62272E07BB014262B821756295C58D
    for byte in b"shoal":
        value = (value ^ byte) * 0x1000000000000000000013B % 2**128
    assert _native.hash128(b"shoal") == value.to_bytes(16, "little")
