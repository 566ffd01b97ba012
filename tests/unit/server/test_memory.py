"""Sizes of memory as people write them, and how much there is in a container."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.server import server
from shoal.errors import ConfigurationError
from shoal.server.memory import MIB, available, default_bound, for_jobs, parse_size, shown_size

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 8192 * MIB), ("512M", 512 * MIB), ("1.5GiB", 1536 * MIB), ("64 mb", 64 * MIB), ("100", 100), ("2k", 2048)],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "8X", "8 G B", "1e9", "nan", "99999999T", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size of memory"):
        parse_size(text)


def test_sizes_are_shown_in_the_unit_that_fits() -> None:
    assert shown_size(512 * MIB) == "512 MiB"
    assert shown_size(1536 * MIB) == "1.5 GiB"


def group(root: Path, groups: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, limit in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit)
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "size"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": f"{64 * MIB}", "memory.max": f"{96 * MIB}"}, 64 * MIB),
        ("0::/docker/1\n", {"memory.max": f"{32 * MIB}"}, 32 * MIB),
        ("4:memory:/x\n2:cpu:/y\n", {"memory/x/memory.limit_in_bytes": f"{16 * MIB}"}, 16 * MIB),
        ("0::/\n", {"memory.max": "max"}, MACHINE),
        ("0::/\n", {}, MACHINE),
    ],
)
def test_a_container_has_what_its_control_groups_leave_it(
    tmp_path: Path, groups: str, limits: dict[str, str], size: int
) -> None:
    assert available(group(tmp_path, groups, limits)) == size


def test_without_control_groups_there_is_the_machine(tmp_path: Path) -> None:
    assert available(tmp_path) == MACHINE


def test_a_server_starts_by_default_whatever_the_machine_has() -> None:
    assert 0 < for_jobs(default_bound()) < max(MACHINE, default_bound())


def test_less_than_a_server_takes_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--memory of 40 MiB is too little"):
        for_jobs(40 * MIB)


@pytest.mark.parametrize(
    ("size", "said"), [("40M", "--memory of 40 MiB is too little"), ("much", "'much' is not a size of memory")]
)
def test_shoal_server_says_what_is_wrong_with_its_memory(size: str, said: str) -> None:
    result = CliRunner().invoke(server, ["--port", "0", "--memory", size], env={"SHOAL_SECRET": "x" * 32})
    assert result.exit_code != 0
    assert said in result.output
