"""Horovod's environment variables: what becomes of each."""

import logging

import pytest

from shoal.config.settings import Settings
from shoal.errors import ConfigurationError
from shoal.horovod import environment


@pytest.fixture(autouse=True)
def _nothing_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_named", set())
    monkeypatch.setattr(environment, "_set", {})


def test_variables_that_mean_something_become_shoals() -> None:
    environ = {
        "HOROVOD_FUSION_THRESHOLD": str(32 * 10**6),
        "HOROVOD_LOG_LEVEL": "trace",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90",
        "HOROVOD_GLOO_IFACE": "eth0",
    }
    environment.apply(environ)
    settings = Settings.from_environment(environ)
    assert (settings.fusion_mb, settings.log, settings.timeout) == (32, "DEBUG", 90)
    assert settings.interfaces == ("eth0",)


def test_what_is_shoals_and_set_counts() -> None:
    environ = {"HOROVOD_LOG_LEVEL": "fatal", "SHOAL_LOG": "info"}
    environment.apply(environ)
    assert environ["SHOAL_LOG"] == "info"


def test_a_second_init_finds_other_values_and_values_that_are_gone() -> None:
    environ = {"HOROVOD_LOG_LEVEL": "fatal", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}
    environment.apply(environ)
    assert (environ["SHOAL_LOG"], environ["SHOAL_TIMEOUT"]) == ("critical", "5")
    environ["HOROVOD_LOG_LEVEL"] = "debug"
    del environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]
    environment.apply(environ)
    assert environ["SHOAL_LOG"] == "debug"
    assert "SHOAL_TIMEOUT" not in environ


@pytest.mark.parametrize("name", ["HOROVOD_FUSION_THRESHOLD", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"])
def test_0_is_the_default_as_horovod_has_it(name: str) -> None:
    environ = {name: "0"}
    environment.apply(environ)
    assert list(environ) == [name]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64M", "a number of bytes"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "soon", "a number of seconds"),
        ("HOROVOD_LOG_LEVEL", "loud", "trace, debug, info, warning, error, fatal"),
    ],
)
def test_a_value_that_cannot_be_read_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}='{value}' is wrong: expected {expected}"):
        environment.apply({name: value})


def test_variables_that_mean_nothing_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "HOROVOD_CYCLE_TIME": "5",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "0",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_TIMELINE": "DYNAMIC",
    }
    with caplog.at_level(logging.WARNING, logger="shoal"):
        environment.apply(environ)
        environment.apply(environ)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("mean nothing to Shoal: HOROVOD_AUTOTUNE, HOROVOD_CYCLE_TIME")


@pytest.mark.parametrize(
    ("environ", "comes"),
    [
        ({}, [10, 20, 40]),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "15"}, [20, 40]),
        ({"HOROVOD_STALL_CHECK_DISABLE": "1"}, []),
        ({"HOROVOD_STALL_CHECK_DISABLE": "0"}, [10, 20, 40]),
    ],
)
def test_warnings_of_stalls_come_when_horovods_variables_say(
    environ: dict[str, str], comes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    environment.apply(environ)
    with caplog.at_level(logging.WARNING, logger="shoal"):
        for seconds in (10, 20, 40):
            text = f"allreduce 'a' has not moved on rank 0 (vm) for {seconds}.0 s: rank 1 (vm) has not called it"
            logging.getLogger("shoal").warning("%s", text)
        logging.getLogger("shoal").warning("something else")
    environment.apply({})
    assert [float(line.split(" for ")[1].split()[0]) for line in caplog.messages[:-1]] == comes


def test_ranks_that_only_horovods_launcher_has_started_do_not_train_alone() -> None:
    with pytest.raises(ConfigurationError, match=r"to Shoal this is rank 0 of 1: start the ranks with shoal run -np 4"):
        environment.apply({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4"})
    environment.apply(
        {
            "HOROVOD_RANK": "2",
            "HOROVOD_SIZE": "4",
            "RANK": "2",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "2",
            "LOCAL_WORLD_SIZE": "4",
        }
    )


def test_scripts_find_their_rank_where_horovodrun_leaves_it() -> None:
    environ = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    environment.tell_rank(environ)
    assert {name: value for name, value in environ.items() if name.startswith("HOROVOD_")} == {
        "HOROVOD_CONTROLLER": "shoal",
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "2",
    }
    # A job that such a script starts has ranks of its own.
    environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environment.apply(environ)
    environment.tell_rank(environ)
    assert (environ["HOROVOD_RANK"], environ["HOROVOD_SIZE"]) == ("0", "1")


@pytest.mark.parametrize(
    "environ", [{}, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "RANK": "0", "WORLD_SIZE": "1"}, {"HOROVOD_SIZE": "2"}]
)
def test_without_a_launcher_of_its_own_nothing_is_told(environ: dict[str, str]) -> None:
    before = dict(environ)
    environment.tell_rank(environ)
    assert environ == before


def test_a_timeline_is_asked_for_by_a_path() -> None:
    assert environment.timeline({}) is None
    assert environment.timeline({"HOROVOD_TIMELINE": "DYNAMIC"}) is None
    assert environment.timeline({"HOROVOD_TIMELINE": "/tmp/t.json"}) == ("/tmp/t.json", False)
    marks = {"HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    assert environment.timeline(marks) == ("t.json", True)
