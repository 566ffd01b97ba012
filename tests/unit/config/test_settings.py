"""settings.py: every variable is read, and what is not understood is refused in one line that names it."""

import dataclasses
import os
import pwd
import socket
from pathlib import Path

import pytest

from shoal.config.addresses import (
    Address,
    interface_addresses,
    is_loopback,
    is_unix,
    parse_address,
    resolve,
    unix_address,
)
from shoal.config.settings import NAMES, SERVER_NAMES, Limits, ServerSettings, Settings, overrides_of
from shoal.errors import ConfigurationError

EVERYTHING = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "SHOAL_SERVERS": "a:7077, 10.0.0.1:1, [fd00::1]:65535",
    "SHOAL_COLOCATED": "always",
    "SHOAL_SECRET": "correct horse battery",
    "SHOAL_TLS": "off",
    "SHOAL_JOB": "night run",
    "SHOAL_RENDEZVOUS": "head:7000",
    "SHOAL_PORT_RANGE": "7100-7199",
    "SHOAL_INTERFACE": "eth0, 10.0.0.3",
    "SHOAL_ALGORITHM": "server",
    "SHOAL_FUSION_MB": "12.5",
    "SHOAL_TIMEOUT": "60",
    "SHOAL_PEER_TIMEOUT": "4.5",
    "SHOAL_SOCKETS": "4",
    "SHOAL_THREADS": "2",
    "SHOAL_CUDA_WAIT": "host",
    "SHOAL_TRACE": "/tmp/timelines",
    "SHOAL_LOG": "Debug",
}


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environment(environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_variable_is_read() -> None:
    assert set(EVERYTHING) | {"SHOAL_SECRET_FILE"} == {*NAMES, "RANK", "WORLD_SIZE"}
    settings = Settings.from_environment(EVERYTHING)
    assert (settings.rank, settings.size, settings.local_rank, settings.local_size) == (1, 2, 0, 1)
    assert settings.servers == (Address("a", 7077), Address("10.0.0.1", 1), Address("fd00::1", 65535))
    assert settings.colocated == "always"
    assert settings.secret == b"correct horse battery"
    assert settings.job == "night run"
    assert settings.meeting_place() == Address("head", 7000)
    assert settings.port_range == (7100, 7199)
    assert settings.interfaces == ("eth0", "10.0.0.3")
    assert (settings.fusion_mb, settings.timeout, settings.peer_timeout) == (12.5, 60.0, 5)
    assert (settings.sockets, settings.threads) == (4, 2)
    assert not settings.waits_in_stream(by_default=True)
    assert settings.trace == Path("/tmp/timelines")
    assert settings.log == "DEBUG"


def test_defaults() -> None:
    settings = Settings.from_environment({})
    assert (settings.servers, settings.colocated, settings.tls, settings.algorithm) == ((), "auto", "off", "server")
    assert (settings.timeout, settings.peer_timeout) == (1800.0, 15)
    assert (settings.sockets, settings.threads) == (None, None)
    assert settings.secret is None
    assert settings.fusion_mb is None
    assert [settings.waits_in_stream(by_default=default) for default in (True, False)] == [True, False]


def test_the_secret_is_not_shown() -> None:
    assert "horse" not in repr(Settings.from_environment(EVERYTHING))
    assert "tiny" not in refusal({"SHOAL_SECRET": "tiny"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHOAL_SERVERS", "a"),
        ("SHOAL_SERVERS", "a:0"),
        ("SHOAL_SERVERS", "a:7077,"),
        ("SHOAL_SERVERS", "a:1,a:1"),
        ("SHOAL_SERVERS", "fd00::1:7077"),
        ("SHOAL_SERVERS", "tcp://a:1"),
        ("SHOAL_COLOCATED", "sometimes"),
        ("SHOAL_SECRET", "short"),
        ("SHOAL_TLS", "on"),
        ("SHOAL_JOB", "a\nb"),
        ("SHOAL_RENDEZVOUS", "head"),
        ("SHOAL_RENDEZVOUS", "head:http"),
        ("SHOAL_RENDEZVOUS", "0.0.0.0:7000"),
        ("SHOAL_PORT_RANGE", "7000"),
        ("SHOAL_PORT_RANGE", "7002-7001"),
        ("SHOAL_PORT_RANGE", "0-99999"),
        ("SHOAL_INTERFACE", "eth0,,eth1"),
        ("SHOAL_ALGORITHM", "tree"),
        ("SHOAL_FUSION_MB", "0"),
        ("SHOAL_FUSION_MB", "inf"),
        ("SHOAL_TIMEOUT", "nan"),
        ("SHOAL_TIMEOUT", "10s"),
        ("SHOAL_PEER_TIMEOUT", "-1"),
        ("SHOAL_PEER_TIMEOUT", "86401"),
        ("SHOAL_SOCKETS", "0"),
        ("SHOAL_THREADS", "0"),
        ("SHOAL_THREADS", "65"),
        ("SHOAL_SOCKETS", "1.5"),
        ("SHOAL_LOG", "loud"),
    ],
)
def test_a_malformed_value_is_named_with_what_is_expected(name: str, value: str) -> None:
    message = refusal({name: value})
    assert name in message
    if name != "SHOAL_SECRET":
        assert repr(value) in message


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_value_is_refused(name: str) -> None:
    assert refusal({name: ""}).startswith(f"{name} is set but empty")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "did you mean SHOAL_SERVERS?" in refusal({"SHOAL_SERVER": "a:1"})
    assert "did you mean SHOAL_FUSION_MB?" in refusal({"SHOAL_FUSION": "25"})
    assert "did you mean SHOAL_" in refusal({"SHOAL_X": "1"})


def test_what_kubernetes_sets_for_a_service_called_shoal_is_ignored() -> None:
    address = "tcp://10.0.0.1:7077"
    kubernetes = {
        "SHOAL_SERVICE_HOST": "10.0.0.1",
        "SHOAL_SERVICE_PORT": "7077",
        "SHOAL_SERVICE_PORT_MAIN": "7077",
        "SHOAL_PORT": address,
        "SHOAL_PORT_7077_TCP": address,
        "SHOAL_PORT_7077_TCP_PROTO": "tcp",
        "SHOAL_PORT_7077_TCP_PORT": "7077",
        "SHOAL_PORT_7077_TCP_ADDR": "10.0.0.1",
        "SHOAL_SERVERS_SERVICE_HOST": "10.0.0.1",
        "SHOAL_SERVERS_PORT_7077_TCP_ADDR": "10.0.0.1",
    }
    assert Settings.from_environment(kubernetes) == Settings.from_environment({})
    assert "SHOAL_PORT " in refusal({"SHOAL_PORT": "7077"})


def test_encryption_is_asked_for_by_name() -> None:
    assert Settings.from_environment({"SHOAL_TLS": "psk"}).encrypts
    assert not Settings.from_environment({}).encrypts


def test_a_server_reads_what_concerns_it_as_a_rank_does() -> None:
    environ = {**EVERYTHING, "SHOAL_TLS": "psk"}
    ours, ranks = ServerSettings.from_environment(environ), Settings.from_environment(environ)
    assert (ours.secret, ours.tls, ours.threads, ours.log) == (ranks.secret, ranks.tls, 2, ranks.log)
    assert (ours.secret, ours.encrypts, ours.log) == (b"correct horse battery", True, "DEBUG")
    assert ServerSettings.from_environment({"SHOAL_SECRET_FILE": "/x"}).secret_file == Path("/x")
    assert "horse" not in repr(ours)
    for name in SERVER_NAMES:
        with pytest.raises(ConfigurationError, match=f"{name} is set but empty"):
            ServerSettings.from_environment({name: ""})
    with pytest.raises(ConfigurationError, match="unset one"):
        ServerSettings.from_environment({"SHOAL_SECRET": "x" * 16, "SHOAL_SECRET_FILE": "/x"})
    with pytest.raises(ConfigurationError, match="did you mean SHOAL_SERVERS"):
        ServerSettings.from_environment({"SHOAL_SERVRES": "a:1"})


def test_a_server_has_nothing_to_say_to_what_concerns_ranks_alone() -> None:
    of_ranks = {name: "" for name in NAMES if name not in SERVER_NAMES}
    assert ServerSettings.from_environment(of_ranks) == ServerSettings()
    for environ in ({"SHOAL_COLOCATED": "never"}, {"RANK": "7", "WORLD_SIZE": "2"}, {"WORLD_SIZE": "many"}):
        refusal(environ)
        assert ServerSettings.from_environment(environ) == ServerSettings()


def test_contradictions() -> None:
    assert "SHOAL_SERVERS" in refusal({"SHOAL_COLOCATED": "never"})
    assert "unset one" in refusal({"SHOAL_SECRET": "x" * 16, "SHOAL_SECRET_FILE": "/x"})


def test_the_meeting_place_is_a_port_above_the_masters() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "head", "MASTER_PORT": "29500"}
    assert Settings.from_environment(environ).meeting_place() == Address("head", 29501)
    with pytest.raises(ConfigurationError, match="65535"):
        Settings.from_environment({**environ, "MASTER_PORT": "65535"}).meeting_place()


def test_the_secret_folder_follows_xdg() -> None:
    folder = Settings.from_environment({"XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/home/x"}).secret_folder
    assert folder == Path("/run/user/7/shoal")
    assert Settings.from_environment({"XDG_STATE_HOME": "/s"}).secret_folder == Path("/s/shoal")
    assert Settings.from_environment({"HOME": "/home/x"}).secret_folder == Path("/home/x/.local/state/shoal")
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert Settings.from_environment({"HOME": ""}).secret_folder == home / ".local/state/shoal"


def test_settings_that_must_agree_are_those_that_ranks_could_differ_in() -> None:
    ours = Settings.from_environment({"SHOAL_FUSION_MB": "25", "SHOAL_PEER_TIMEOUT": "5"}).shared()
    theirs = {"SHOAL_FUSION_MB": "25.0", "SHOAL_PEER_TIMEOUT": "4.5", "SHOAL_TIMEOUT": "5"}
    assert Settings.from_environment(theirs).shared() == ours
    # All ranks have a timeline or none, each in a folder of its own.
    here, there = (
        Settings.from_environment({**theirs, "SHOAL_TRACE": folder}).shared() for folder in ("/here", "/there")
    )
    assert here == there != ours
    assert Settings.from_environment({**theirs, "SHOAL_PEER_TIMEOUT": "6"}).shared() != ours


@pytest.mark.parametrize(
    "changes",
    [
        {"segment": 0},
        {"segment": 100},
        {"segment": 32 * 1024 * 1024},
        {"credit": Limits().segment - 1},
        {"eager": -1},
        {"small": Limits().segment + 1},
        {"least_shard": 0},
        {"least_segment": Limits().segment + 1},
        {"rank_segment": 2 * Limits().segment, "rank_credit": Limits().credit},
        {"rank_segment": 100, "rank_credit": 100},
        {"rank_credit": 64, "rank_segment": 128},
        {"rank_credit": Limits().credit + 1},
        {"credit": 2**32},
    ],
)
def test_limits_that_cannot_work_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        Limits(**changes)


def test_the_smallest_limits_work() -> None:
    smallest = Limits(segment=64, credit=64, eager=0, small=0, least_shard=1)
    assert overrides_of(smallest)["segment"] == 64
    assert dataclasses.asdict(smallest)["credit"] == 64


def test_ranks_of_one_machine_meet_without_a_port_unless_a_network_was_asked_for() -> None:
    def place(**more: str) -> Address | None:
        ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        return Settings.from_environment({**ranks, **master, **more}).meeting_place()

    here = place()
    assert here is not None
    assert is_unix(here.host)
    assert here == place() != place(MASTER_PORT="29600")
    assert place(SHOAL_RENDEZVOUS="127.0.0.1:7") == Address("127.0.0.1", 7)
    above = Address("127.0.0.1", 29501)
    assert place(SHOAL_INTERFACE="lo") == place(SHOAL_PORT_RANGE="30000-30010") == above
    assert place(LOCAL_WORLD_SIZE="1") == above


def test_names_of_unix_sockets_are_addresses() -> None:
    address = Address("@0123abcd", 77)
    assert str(address) == "@shoal-0123abcd-77"
    assert is_loopback(address.host)
    ((family, name),) = resolve(address)
    assert family == socket.AF_UNIX
    assert isinstance(name, bytes)
    assert unix_address(name) == address
    for other in (b"", b"\0shoal-1", b"\0other-1-2", b"/tmp/shoal-1-2", b"\0shoal-a-b"):
        with pytest.raises(ValueError, match="not the name of a socket"):
            unix_address(other)


def test_addresses_are_written_as_they_are_read() -> None:
    for text in ("a:1", "10.0.0.1:7077", "[fd00::1]:7077"):
        assert str(parse_address(text)) == text


def test_loopback() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("no-such-host.invalid")


def test_interfaces() -> None:
    assert "127.0.0.1" in interface_addresses(["lo"])
    assert interface_addresses(["10.1.2.3"]) == ["10.1.2.3"]
    with pytest.raises(ValueError, match="'nope' is not a network interface"):
        interface_addresses(["nope"])
