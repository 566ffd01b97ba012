"""meeting_point.py: what the launcher's store holds is checked before it is used, like everything that other processes say."""

import json
from pathlib import Path

import pytest

from shoal.assembly.meeting_point import _parse_stored, meet
from shoal.config.addresses import Address
from shoal.config.launchers import Launch
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError


def test_a_meeting_place_survives_the_store() -> None:
    stored = json.dumps({"address": ["node-a", 7000], "secret": "0123456789abcdef"})
    assert _parse_stored(stored) == (Address("node-a", 7000), b"0123456789abcdef")
    assert _parse_stored(b'{"address": ["::1", 1], "secret": null}') == (Address("::1", 1), None)
    assert _parse_stored(b'{"address": ["@0a", 1], "secret": null}') == (Address("@0a", 1), None)


def test_a_place_that_another_job_of_the_machine_has_is_refused_with_what_to_do(tmp_path: Path) -> None:
    launch = Launch("torchrun", 0, 2, 0, 2, "127.0.0.1", 29477, "")
    settings = Settings(launch, secret_folder=tmp_path)
    first = meet(settings)
    with first.listeners[0], pytest.raises(ConfigurationError, match=r"cannot listen at @shoal-.* set MASTER_PORT"):
        meet(settings)
    again = meet(settings)
    again.listeners[0].close()


def test_servers_elsewhere_ask_for_a_secret_before_anybody_waits(tmp_path: Path) -> None:
    launch = Launch("torchrun", 1, 2, 0, 1, "192.0.2.1", 29477, "")
    settings = Settings(launch, secret_folder=tmp_path, servers=(Address("192.0.2.2", 7000),))

    class Store:
        def get(self, key: str) -> bytes:
            raise AssertionError(f"waits for {key}")

        def set(self, key: str, value: str) -> None:
            raise AssertionError(f"sets {key} to {value}")

    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.2:7000 are on other machines and rank 1 has no secret"):
        meet(settings, Store())


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
        '{"address": ["@not-ours", 7000], "secret": null}',
        r'{"address": ["a", 7000], "secret": "\ud800"}',
    ],
)
def test_anything_else_in_the_store_is_an_error_that_says_so(stored: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="launcher's store"):
        _parse_stored(stored)
