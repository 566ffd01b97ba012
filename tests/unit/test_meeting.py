"""meeting.py: what the launcher's store holds is checked before it is used, like everything that other processes say."""

import json

import pytest

from shoal.addresses import Address
from shoal.errors import ConfigurationError
from shoal.meeting import _parse_stored


def test_a_meeting_place_survives_the_store() -> None:
    stored = json.dumps({"address": ["node-a", 7000], "secret": "0123456789abcdef"})
    assert _parse_stored(stored) == (Address("node-a", 7000), b"0123456789abcdef")
    assert _parse_stored(b'{"address": ["::1", 1], "secret": null}') == (Address("::1", 1), None)


@pytest.mark.parametrize(
    "stored",
    [
        b"\xff",
        "[" * 100_000,
        "7",
        "[]",
        "{}",
        '{"address": ["a", 7000]}',
        '{"address": [1.5, 7000], "secret": null}',
        '{"address": ["a", Infinity], "secret": null}',
        '{"address": ["a", 70000], "secret": null}',
        '{"address": ["a b", 7000], "secret": null}',
        r'{"address": ["a", 7000], "secret": "\ud800"}',
    ],
)
def test_anything_else_in_the_store_is_an_error_that_says_so(stored: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="launcher's store"):
        _parse_stored(stored)
