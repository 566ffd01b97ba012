"""The secret of a job: where it comes from, and the file that ranks on one machine share when nobody has set one.

A secret is 16 bytes or more. It comes from SHOAL_SECRET or SHOAL_SECRET_FILE, from the launcher's store, or, where every
rank and server is on this machine, from a file that only this user can read. Several machines and none of these is a
ConfigurationError that says how to make one.
"""

import contextlib
import errno
import logging
import os
import secrets
import stat
from pathlib import Path

from shoal.config.settings import SHORTEST_SECRET, ServerSettings, temporary_folder
from shoal.errors import ConfigurationError

_log = logging.getLogger("shoal")

# Longer files are no secrets but a mistake.
_LONGEST_FILE = 64 * 1024

# What is said of a folder that cannot be made or written to.
_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)

HOW_TO_MAKE_ONE = (
    "make one with `openssl rand -hex 32` and set SHOAL_SECRET, or SHOAL_SECRET_FILE to a file that holds it, to the same "
    "on every rank and server"
)


def configured_secrets(settings: ServerSettings) -> list[bytes]:
    """What SHOAL_SECRET or SHOAL_SECRET_FILE hold; empty if neither is set. A file may hold several, one a line.

    A rank uses the first; a server takes them all. Raises ConfigurationError if the file cannot be used.
    """
    if settings.secret is not None:
        return [settings.secret]
    if settings.secret_file is not None:
        return _read_secret_file(settings.secret_file)
    return []


def _read_secret_file(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"SHOAL_SECRET_FILE={str(path)!r} cannot be read: {error.strerror}") from None
    if mode & stat.S_IROTH:
        _log.warning("SHOAL_SECRET_FILE=%s can be read by every user of this machine: chmod 600 it", path)
    found = [line.strip() for line in content.splitlines() if line.strip()]
    if len(content) > _LONGEST_FILE or not found or any(len(secret) < SHORTEST_SECRET for secret in found):
        raise ConfigurationError(
            f"SHOAL_SECRET_FILE={str(path)!r} does not hold a secret of at least {SHORTEST_SECRET} characters a line: "
            "write one with `openssl rand -hex 32`"
        )
    return found


def fresh_secret() -> bytes:
    return secrets.token_hex(32).encode()


def user_secret(folder: Path) -> bytes:
    """The secret that this user's processes on this machine share. Made on first use, whoever comes first.

    Where nothing can be written in ``folder``, it is kept in a folder of this user's among the temporary files.
    Raises ConfigurationError if folder or file belong to someone else or are open to others.
    """
    try:
        return _secret_in(folder)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise _cannot_be_kept(folder, error) from None
    # A container's user may have a home that is not there, or the machine's root.
    elsewhere = temporary_folder()
    try:
        if elsewhere.is_symlink():
            raise ConfigurationError(f"{elsewhere} is a link, so no secret can be kept there: remove it")
        return _secret_in(elsewhere)
    except OSError as error:
        raise _cannot_be_kept(elsewhere, error) from None


def _cannot_be_kept(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the secret for ranks on one machine cannot be kept in {folder} ({error.strerror}): {HOW_TO_MAKE_ONE}"
    )


def _secret_in(folder: Path) -> bytes:
    path = folder / "secret"
    _make_folder(folder)
    if not path.exists():
        _make_secret(path)
    return _read_private(path)


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"{folder} does not belong to this user alone, so no secret can be kept there: chown and chmod 700 it"
        )


def _make_secret(path: Path) -> None:
    """The file appears whole or not at all, and one of several who make it at once wins."""
    draft = path.with_name(f".secret-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(fresh_secret() + b"\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _read_private(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise ConfigurationError(f"{path} is not a file that only this user can read: remove it, it is made anew")
        secret = file.read(_LONGEST_FILE).strip()
    if len(secret) < SHORTEST_SECRET:
        raise ConfigurationError(f"{path} does not hold a secret: remove it, it is made anew")
    return secret
