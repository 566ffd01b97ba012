"""docs/protocol/format.md against the code: its golden bytes, its fields, its numbers, and every section that the code refers to."""

import re
from pathlib import Path

from shoal import _native
from shoal.net.handshake import CHALLENGE_BYTES, HELLO_BYTES, PROOF_BYTES, VERDICT_BYTES, VERSION, Refusal, Role
from shoal.ops import operations
from shoal.ops.arrays import DTYPES

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "protocol"
PAGE = (PAGES / "format.md").read_text()
FRAMES = PAGE.split("## Frames")[1].split("\n## ")[0]


def golden_header() -> bytes:
    """The one indented line of hexadecimal words in the section on frames."""
    lines = re.findall(r"^    ((?:[0-9a-f]{8} ){9}[0-9a-f]{8})$", FRAMES, re.MULTILINE)
    assert len(lines) == 1, "the section on frames prints one golden header of ten words"
    return bytes.fromhex(lines[0])


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from its definition: not the code that is tested."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def numbers_of(what: str) -> dict[str, int]:
    """The row of the section on numbers: what is written behind each number, and the number."""
    row = next(line for line in section("Numbers").splitlines() if line.startswith(f"| {what} |"))
    return {name.strip(): int(number) for number, name in re.findall(r"(\d+)\s([a-z][^,|]*)", row.split("|")[2])}


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


def test_every_frame_type_has_its_number_and_its_name() -> None:
    listed = {
        name: int(number)
        for number, name in re.findall(r"^\| (\d+) \| ([A-Z]+) \|", section("Frame types"), re.MULTILINE)
    }
    source = (ROOT / "native" / "wire" / "frame.h").read_text()
    types = re.search(r"enum class Type : std::uint8_t \{([^}]*)\}", source)
    assert types
    assert listed == {name.upper(): int(number) for name, number in re.findall(r"(\w+) = (\d+)", types[1])}


def test_dtypes_operators_collectives_and_statuses_have_their_numbers() -> None:
    assert numbers_of("dtypes") == DTYPES
    assert numbers_of("operators") == {"none": 0, **operations.OPERATORS}
    for name, number in numbers_of("collectives").items():
        assert getattr(operations, name.upper().replace("-", "_")) == number
    source = (ROOT / "native" / "base" / "status.h").read_text()
    codes = re.search(r"enum class Code : std::uint8_t \{([^}]*)\}", source)
    assert codes
    assert sorted(numbers_of("statuses").values()) == [int(number) for number in re.findall(r"\w+ = (\d+)", codes[1])]


def test_the_fields_of_an_opening_follow_each_other_without_a_gap() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+|…) \|", section("Openings"), re.MULTILINE)
    ends = [0, *(int(offset) + int(size) for offset, size in rows[:-1])]
    assert [int(offset) for offset, _ in rows] == ends
    assert rows[-1] == ("112", "…")


def test_the_handshake_has_the_lengths_roles_and_statuses_of_the_code() -> None:
    handshake = section("Handshake")
    lengths = [int(length) for length in re.findall(r"^\| \d \| [A-Z]+,[^|]*\| (\d+) \|", handshake, re.MULTILINE)]
    assert lengths == [HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES, VERDICT_BYTES]
    roles = re.findall(r"^\| (\w+) \| (\d) \|", section("Links"), re.MULTILINE)
    assert {name.upper(): int(number) for name, number in roles} == {role.name: int(role) for role in Role}
    statuses = handshake.split("Status of CHALLENGE and VERDICT:")[1].split("\n\n")[0]
    assert [int(number) for number in re.findall(r"(\d)\s[a-z]", statuses)] == [int(refusal) for refusal in Refusal]
    assert f"Version: **{VERSION}**." in PAGE


def test_every_section_that_a_file_refers_to_exists() -> None:
    missing = []
    for folder in ("native", "src", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".py", ".pyi"}:
                continue
            for page, title in re.findall(
                r'docs/protocol/(\w+)\.md, ("[A-Z][\w ]+"|[A-Z][a-z]+)', re.sub(r"\n\s*(//|#)", "", path.read_text())
            ):
                if f"\n## {title.strip(chr(34))}\n" not in (PAGES / f"{page}.md").read_text():
                    missing.append(f"{path.relative_to(ROOT)}: {page}.md, {title}")
    assert missing == []
