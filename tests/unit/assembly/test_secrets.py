"""secrets.py: the secret from a file, and the one that a user's processes on one machine share."""

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from shoal.assembly import secrets
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError


def with_file(path: Path) -> Settings:
    return dataclasses.replace(Settings.from_environment({}), secret_file=path)


def test_a_secret_file_may_hold_several(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("first secret of many\n\n  second secret of all \r\n")
    assert secrets.configured_secrets(with_file(path)) == [b"first secret of many", b"second secret of all"]


@pytest.mark.parametrize("content", ["", "short\n", "x" * 70000])
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="SHOAL_SECRET_FILE"):
        secrets.configured_secrets(with_file(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing-here"):
        secrets.configured_secrets(with_file(tmp_path / "nothing-here"))


def test_the_users_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "shoal"
    secret = secrets.user_secret(folder)
    assert len(secret) == 64
    assert secrets.user_secret(folder) == secret
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry.name for entry in folder.iterdir()] == ["secret"]


def test_whoever_makes_it_at_once_has_the_same(tmp_path: Path) -> None:
    found: list[bytes] = []
    start = threading.Barrier(16)

    def make() -> None:
        start.wait(10)
        found.append(secrets.user_secret(tmp_path / "shoal"))

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 16
    assert len(set(found)) == 1


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secrets.user_secret(tmp_path)
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(ConfigurationError, match="only this user"):
        secrets.user_secret(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x" * 64)
    folder = tmp_path / "shoal"
    folder.mkdir(mode=0o700)
    (folder / "secret").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="secret"):
        secrets.user_secret(folder)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shoal"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        secrets.user_secret(folder)


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shoal"
    folder.mkdir(mode=0o700)
    (folder / "secret").touch(mode=0o600)
    with pytest.raises(ConfigurationError, match="does not hold a secret"):
        secrets.user_secret(folder)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are."""
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_without_a_home_to_write_to_it_is_kept_among_the_temporary_files(temporary: Path) -> None:
    nowhere = Path("/proc/no such home/.local/state/shoal")  # where not even root can make a folder
    secret = secrets.user_secret(nowhere)
    assert secrets.user_secret(nowhere) == secret
    folder = temporary / f"shoal-{os.geteuid()}"
    assert (folder / "secret").read_bytes().strip() == secret
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_somebody_else_has_laid_there_is_not_used(temporary: Path) -> None:
    folder = temporary / f"shoal-{os.geteuid()}"
    (temporary / "theirs").mkdir(mode=0o700)
    folder.symlink_to(temporary / "theirs")
    with pytest.raises(ConfigurationError, match="is a link"):
        secrets.user_secret(Path("/proc/no such home"))
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="does not belong to this user alone"):
        secrets.user_secret(Path("/proc/no such home"))


AS_SOMEBODY = ["unshare", "--user", "--map-user=54321"]


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*AS_SOMEBODY, "true"], capture_output=True).returncode != 0,
    reason="needs a namespace of users",
)
def test_a_user_without_an_entry_in_passwd_and_without_home_finds_a_secret(tmp_path: Path) -> None:
    """As in containers that are run with any number for a user."""
    program = (
        "from shoal.assembly import secrets; from shoal.config.settings import Settings; "
        "print(secrets.user_secret(Settings.from_environment().secret_folder).decode())"
    )
    words = [*AS_SOMEBODY, sys.executable, "-c", program]
    environment = {"TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    found = [subprocess.run(words, env=environment, capture_output=True, text=True) for _ in range(2)]
    assert [done.returncode for done in found] == [0, 0], found
    assert found[0].stdout == found[1].stdout
    assert len(found[0].stdout.strip()) == 64
    assert [entry.name for entry in tmp_path.iterdir()] == ["shoal-54321"]


def test_a_file_in_the_home_of_a_user_who_has_none_is_a_clear_error() -> None:
    with pytest.raises(ConfigurationError, match="SHOAL_SECRET_FILE='~nobody-of-that-name/x' is wrong"):
        Settings.from_environment({"SHOAL_SECRET_FILE": "~nobody-of-that-name/x"})
