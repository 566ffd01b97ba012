"""What a link can be asked to be, and how rates and sizes are written."""

import dataclasses
from typing import Any

import pytest

from shoal.testing.lab import Lab, LinkShape, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400mbit", 400e6),
        ("1gbit", 1e9),
        ("2.5Gbit", 2.5e9),
        ("64kbit", 64e3),
        ("9600", 9600.0),
        ("9600bit", 9600.0),
        ("50mbps", 400e6),
        ("1mibit", 1048576.0),
        ("1 gbit", 1e9),
    ],
)
def test_rates_are_written_as_tc_writes_them(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("512b", 512), ("256kb", 262144), ("256K", 262144), ("4mb", 4194304), ("1.5k", 1536)],
)
def test_sizes_are_written_as_tc_writes_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "fast", "400 mbits", "-1mbit", "1e9", "mbit", "4mb", "nan"])
def test_what_is_no_rate_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate: .*400mbit"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "big", "-1kb", "256kbit", "0x10"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size: .*256kb"):
        parse_size(text)


def test_a_link_receives_as_fast_as_it_sends_unless_told_otherwise() -> None:
    assert LinkShape().receiving is None
    assert LinkShape(rate=1e9).receiving == 1e9
    asymmetric = LinkShape(rate=1e9, receive_rate=2e8)
    assert (asymmetric.sending, asymmetric.receiving) == (1e9, 2e8)
    assert (LinkShape(receive_rate=2e8).sending, LinkShape(receive_rate=2e8).receiving) == (None, 2e8)


def test_a_link_has_the_documented_defaults_and_cannot_be_changed() -> None:
    shape = LinkShape()
    assert (shape.queue, shape.burst) == (4 << 20, 128 << 10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        shape.rate = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("shape", "piece"),
    [
        (LinkShape(), 65536),
        (LinkShape(queue=65536), 65536),  # where nothing is shaped, nothing waits
        (LinkShape(rate=1e9), 65536),
        (LinkShape(rate=1e9, queue=256 << 10), 65536),
        (LinkShape(rate=1e9, queue=64 << 10), 16384),
        (LinkShape(receive_rate=1e9, send_queue=64 << 10), 16384),
        (LinkShape(rate=1e9, queue=1024), 8192),
        (LinkShape(rate=1e9, queue=64 << 10, offload=65536), 65536),
    ],
)
def test_data_is_sent_in_pieces_of_which_a_queue_holds_several(shape: LinkShape, piece: int) -> None:
    assert shape.largest_piece == piece


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": 0}, "rate is at least"),
        ({"rate": float("inf")}, "rate is at least"),
        ({"rate": float("nan")}, "rate is at least"),
        ({"receive_rate": -1}, "receive_rate is at least"),
        ({"queue": 0}, "queue is a number of bytes"),
        ({"burst": 1 << 32}, "burst is a number of bytes"),
        ({"send_queue": 0}, "send_queue is a number of bytes"),
        ({"offload": 1000}, "offload is a number of bytes"),
        ({"congestion_control": "bbr; reboot"}, "cannot be the name of a congestion control"),
    ],
)
def test_a_link_that_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LinkShape(**wrong)


@pytest.mark.parametrize(
    ("hosts", "wrong", "said"),
    [
        (0, {}, "from 1 to 250 hosts"),
        (251, {}, "from 1 to 250 hosts"),
        (2, {"shapes": {2: LinkShape()}}, "no host 2 to shape"),
        (2, {"name": "../x"}, "name is a word"),
        (2, {"mtu": 100}, "MTU"),
    ],
)
def test_a_lab_that_cannot_be_is_refused_before_anything_is_made(hosts: int, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Lab(hosts, **wrong)
