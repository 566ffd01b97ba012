"""messages.py and terms.py: what comes off the network is checked before it is used."""

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.assembly.terms import JobTerms, Welcome, parse_job, parse_welcome
from shoal.config.addresses import Address
from shoal.config.settings import Limits
from shoal.errors import PeerLost, Timeout
from shoal.net import messages
from shoal.net.messages import Message, MessageError
from shoal.tuning.measured import Network
from shoal.tuning.shares import server_places

OWNER = bytes(range(16))
TERMS = JobTerms((2, 2, 0), ("a", "b"), Limits(), 15)


def over_the_wire(kind: str, fields: messages.Fields) -> Message:
    data = messages.pack(kind, fields)
    assert messages.unpack_length(data[:4]) == len(data) - 4
    return messages.unpack(data[4:])


def job(**changes: Any) -> Message:
    return over_the_wire("job", {**TERMS.job_fields(OWNER, 1), **changes})


def test_the_layout_of_a_message() -> None:
    data = messages.pack("go", {})
    assert data == struct.pack("<I", 13) + b'{"type":"go"}'


def test_unknown_fields_are_ignored_and_missing_ones_named() -> None:
    message = over_the_wire("x", {"known": 1, "new": {}})
    assert message.integer("known", 0, 1) == 1
    with pytest.raises(MessageError, match="lacks the field 'other'"):
        message.text("other")


def test_a_message_has_a_longest_length() -> None:
    with pytest.raises(MessageError, match="more than"):
        messages.unpack_length(struct.pack("<I", messages.LONGEST_MESSAGE + 1))
    with pytest.raises(MessageError, match="too many"):
        messages.pack("x", {"long": "x" * messages.LONGEST_MESSAGE})


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b'{"type":1}', b"[" * 100_000, b'{"type":"x"', b"1" * 10_000]
)
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(MessageError):
        messages.unpack(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        message = messages.unpack(data)
    except MessageError:
        return
    assert isinstance(message.kind, str)


def test_a_job_comes_back_as_it_was() -> None:
    request = parse_job(job())
    assert (request.owner, request.index, request.terms) == (OWNER, 1, TERMS)
    assert request.terms.difference(TERMS) == ""
    of_one_node = replace(TERMS, leaders=(0, 0))
    assert parse_job(over_the_wire("job", of_one_node.job_fields(OWNER, 1))).terms == of_one_node


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", "zz"),
        ("owner", 5),
        ("owner", OWNER.hex() + "00"),
        ("size", 0),
        ("size", True),
        ("size", 2.0),
        ("size", 10**30),
        ("index", -1),
        ("index", 3),
        ("weights", []),
        ("weights", [0, 0]),
        ("weights", [1, -1]),
        ("weights", ["1"]),
        ("weights", {"0": 1}),
        ("hosts", ["a"]),
        ("hosts", ["a", 1]),
        ("hosts", ["a", "b" * 20000]),
        ("leaders", [0]),
        ("leaders", [0, 2]),
        ("leaders", [1, 0]),
        ("leaders", None),
        ("segment", 100),
        ("segment", None),
        ("credit", 1),
        ("eager", 2**32),
        ("small", Limits().segment + 1),
        ("least_shard", 0),
        ("least_segment", Limits().segment + 1),
        ("rank_segment", Limits().segment + 64),
        ("rank_credit", Limits().credit + 1),
        ("lanes", 0),
        ("lanes", 2),
        ("channels", 0),
        ("channels", 2),
        ("peer_timeout", 0),
        ("peer_timeout", 86401),
        ("peer_timeout", 10**9),
        ("peer_timeout", 15.0),
        ("peer_timeout", None),
    ],
)
def test_every_field_of_a_job_is_checked(field: str, value: Any) -> None:
    with pytest.raises(MessageError, match=r"'?job'?"):
        parse_job(job(**{field: value}))


@pytest.mark.parametrize("fields", [{"leaders": [0, 0]}, {"lanes": 3, "channels": 3}])
def test_a_ring_has_one_channel_and_ranks_that_share_no_memory(fields: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="the ring"):
        parse_job(job(algorithm="ring", **fields))


def test_what_differs_between_two_jobs_is_named() -> None:
    assert JobTerms((2, 2, 0), ("a", "c"), Limits(), 15).difference(TERMS) == "hosts"
    assert JobTerms((2, 1, 0), ("a", "b"), Limits(), 15).difference(TERMS) == "weights"
    assert JobTerms((2, 2, 0), ("a", "b"), Limits(eager=0), 15).difference(TERMS) == "eager"
    assert JobTerms((2, 2, 0), ("a", "b"), Limits(), 60).difference(TERMS) == "peer_timeout"
    assert JobTerms((2, 2, 0), ("a", "b"), Limits(), 15, lanes=3).difference(TERMS) == "lanes"
    in_two_networks = JobTerms((2, 2, 0), ("a", "b"), Limits(), 15, lanes=4, networks=2)
    assert in_two_networks.difference(replace(in_two_networks, networks=1)) == "networks"
    assert [in_two_networks.channel_of(index) for index in range(4)] == [0] * 4
    assert [replace(in_two_networks, channels=2).channel_of(index) for index in range(8)] == [0, 0, 1, 1] * 2
    assert (
        JobTerms((2, 2, 0), ("a", "b"), Limits(), 15, lanes=3, channels=2).difference(
            JobTerms((2, 2, 0), ("a", "b"), Limits(), 15, lanes=3)
        )
        == "channels"
    )
    assert JobTerms((2, 2, 0), ("a", "b"), Limits(), 15, leaders=(0, 0)).difference(TERMS) == "leaders"


def test_a_welcome_comes_back_as_it_was() -> None:
    welcome = Welcome(
        incarnation=OWNER,
        hosts=("a", "b"),
        addresses=(Address("10.0.0.1", 1), Address("fd00::1", 2)),
        leaders=(0, 0),
        servers=tuple(server_places(["a", "b"], (Address("s", 7077),), "auto")),
        lanes=2,
        channels=2,
        limits=Limits(small=64),
        peer_timeout=60,
        network=Network((50_000_000, 25_000_000), (50_000_000,), 60e-6),
        rate=25_000_000,
        standby=True,
    )
    found = parse_welcome(over_the_wire("welcome", welcome.as_fields()), 2)
    assert found == welcome
    assert found.server_ranks() == [0, 0, 1, 1, -1, -1]
    assert found.server_names() == [
        "a (rank 0)",
        "a (rank 0)",
        "b (rank 1)",
        "b (rank 1)",
        "s:7077",
        "s:7077",
    ]
    assert found.terms.weights == (1, 1, 1, 1, 2, 2)
    assert (found.terms.lanes, found.terms.channels) == (2, 2)
    assert (found.networks, found.controls) == (1, 2)
    assert [found.lanes_with(index) for index in (2, 3)] == [[2], [3]]
    assert found.terms.peer_timeout == 60
    assert json.dumps(found.as_fields()) == json.dumps(welcome.as_fields())


def test_a_refusal_carries_the_error() -> None:
    lost = messages.error_of(messages.unpack(messages.pack_refused(PeerLost("gone", 3, "c"))[4:]))
    assert isinstance(lost, PeerLost)
    assert (str(lost), lost.rank, lost.host) == ("gone", 3, "c")
    assert type(messages.error_of(messages.unpack(messages.pack_refused(Timeout("late"))[4:]))) is Timeout


@pytest.mark.parametrize(
    "said", [r'{"type": "\ud800"}', r'{"type": "x", "a": "\ud800"}', r'{"type": "x", "a": {"\udfff": "b"}}']
)
def test_half_of_a_pair_of_surrogates_is_no_text(said: str) -> None:
    """What came in goes into messages and logs, which are written in UTF-8."""

    def read() -> None:
        message = messages.unpack(said.encode())
        if '"a": {' in said:
            message.text_map("a")
        message.text("a")

    with pytest.raises(MessageError) as caught:
        read()
    messages.pack_refused(caught.value)
