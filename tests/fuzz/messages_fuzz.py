"""messages.py and what reads its messages: an answer or a MessageError, nothing else; and what was accepted can be used."""

import json
from typing import Any

from harness import Input, damaged, main

from shoal.assembly import meeting_point
from shoal.assembly.rails import Rail, RailPlaces, parse_ends
from shoal.assembly.terms import JobTerms, Welcome, parse_job, parse_welcome
from shoal.config.addresses import Address
from shoal.config.settings import Limits
from shoal.errors import ConfigurationError, ShoalError
from shoal.net import messages
from shoal.net.messages import Message, MessageError
from shoal.server.front import _core_config
from shoal.tuning import probe
from shoal.tuning.measured import Network
from shoal.tuning.shares import server_places

TERMS = JobTerms((2, 2, 1), ("a", "b"), Limits(), 15)
WELCOME = Welcome(
    incarnation=bytes(range(16)),
    hosts=("a", "b"),
    addresses=(Address("10.0.0.1", 7000), Address("10.0.0.2", 7001)),
    leaders=(0, 1),
    servers=tuple(server_places(("a", "b"), (Address("10.0.0.3", 7077),), "always")),
    lanes=2,
    channels=2,
    limits=Limits(),
    peer_timeout=15,
    network=Network((10**9, 10**9), (10**9,), 0.0001),
    rails=tuple(
        Rail(
            RailPlaces(
                (name, name),
                (Address(f"10.0.{number}.1", 7000), Address(f"10.0.{number}.2", 7001)),
                (Address(f"10.0.{number}.3", 7077),),
            ),
            (2, 2, 1),
        )
        for number, name in enumerate(("eth0", "eth1"))
    ),
)
JOB = {"type": "job", **TERMS.job_fields(bytes(16), 2)}
JOIN = {
    "type": "join",
    "rank": 1,
    "size": 2,
    "host": "a",
    "address": ["10.0.0.1", 7000],
    "machine": "m",
    "local_rank": 0,
    "threads": 0,
    "processors": 4,
    "rails": [
        {"name": "eth0", "address": ["10.0.0.1", 7000], "prefix": 24},
        {"name": "eth1", "address": ["10.0.1.1", 7000], "prefix": 24},
    ],
    "settings": {"version": "1"},
}
MEASURED = {"type": "measured", "sent": 1, "received": 2, "round_trip": 3, "busy": 4}
REFUSED = {"type": "refused", "error": "PeerLost", "message": "gone", "rank": 1, "host": "b"}
STORED = {"address": ["10.0.0.1", 7000], "secret": "0123456789abcdef"}


def one_input(data: bytes) -> None:
    given = Input(data)
    kind = given.below(9)
    try:
        if kind == 0:
            messages.unpack_length(given.bytes(4).ljust(4, b"\0"))
        elif kind == 1:
            _read_everything(messages.unpack(given.rest()))
        elif kind == 8:
            _stored(given)
        else:
            readers = [_job, _welcome, _join, _measured, _refused, _flow]
            sayings: list[dict[str, Any]] = [
                JOB, {"type": "welcome", **WELCOME.as_fields()}, JOIN, MEASURED, REFUSED, {"type": "flow", "both": True},
            ]  # fmt: skip
            readers[kind - 2](messages.unpack(damaged(sayings[kind - 2], given)))
    except MessageError as error:
        # It goes back to whoever said it.
        messages.unpack(messages.pack_refused(error)[messages.LENGTH_BYTES :])


def _job(message: Message) -> None:
    terms = parse_job(message).terms
    assert terms.difference(terms) == ""
    _core_config(terms, Address("10.0.0.3", 7077))


def _welcome(message: Message) -> None:
    welcome = parse_welcome(message, 2)
    names = welcome.server_names()
    assert len(names) == len(welcome.server_ranks()) == len(welcome.terms.weights)
    for index in range(len(names)):
        assert index in welcome.lanes_with(index)
        assert f"{welcome.where(index)} {welcome.sources(index, 1)} {welcome.way(index, 1)}"
    messages.pack("welcome", welcome.as_fields())


def _join(message: Message) -> None:
    message.integer("rank", 0, 1000)
    message.integer("size", 1, 1000)
    address = Address(*message.address("address"))
    text = f"{message.text('host')} {address} {parse_ends(message)} {message.text_map('settings')}"
    messages.pack_refused(ShoalError(text))


def _measured(message: Message) -> None:
    for name in ("sent", "received", "round_trip", "busy"):
        assert 0 <= message.integer(name, 0, 10**6) <= 10**6


def _refused(message: Message) -> None:
    messages.pack_refused(messages.error_of(message))


def _flow(message: Message) -> None:
    probe.asks_for_both(message)


def _read_everything(message: Message) -> None:
    for reader in (_job, _welcome, _join, _measured, _refused, _flow):
        try:
            reader(message)
        except MessageError:
            continue


def _stored(given: Input) -> None:
    stored = json.dumps(given.json_value()).encode() if given.below(4) == 0 else damaged(STORED, given)
    try:
        meeting_point._parse_stored(stored)
    except ConfigurationError:
        return


if __name__ == "__main__":
    main(one_input)
