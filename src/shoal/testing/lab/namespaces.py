"""A lab's namespaces: their names, what runs in them, and their end, also when the process that made them dies.

A name is ``shoal-lab-PID-START-LABEL-HOST``: the process that made the lab and, since process numbers come again, when
it started. So everyone can see which labs are abandoned: the next lab, and ``shoal lab clean``, remove those.
The *janitor* does not wait for that: a small process beside each lab that reads a pipe whose other end the owner holds,
and cleans up when the pipe ends. It is this file, run by path; so nothing here imports the package.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path("/var/run/netns")  # iproute2's
OWN_FILES = Path("/etc/netns")  # what is in NAME/ here, programs of a namespace see in /etc: iproute2's as well
_NAME = re.compile(r"shoal-lab-(?P<pid>\d+)-(?P<start>\d+)-.+")
_END_SECONDS = 5.0  # for processes to die, and for namespaces to go
_LATE_SECONDS = 1.0  # for a process that has opened a namespace to be in it


def own_prefix() -> str:
    """What the names of all labs of this process begin with."""
    pid = os.getpid()
    return f"shoal-lab-{pid}-{_start_of(pid)}-"


def existing(prefix: str = "shoal-lab-") -> list[str]:
    """The namespaces of labs, alive or abandoned, whose names begin with ``prefix``."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in FOLDER.iterdir() if path.name.startswith(prefix))
    return []


def abandoned() -> list[str]:
    """The namespaces of labs whose process is gone."""
    matches = [match for match in map(_NAME.fullmatch, existing()) if match]
    return [match[0] for match in matches if _start_of(int(match["pid"])) != match["start"]]


def clean(ip: str = "ip") -> list[str]:
    """Removes labs whose process is gone, with what still runs in them. Returns the names of their namespaces.

    Needs root. ``ip``: the path of iproute2's program.
    """
    names = abandoned()
    remove(names, ip)
    return names


def remove(names: Iterable[str], ip: str) -> None:
    """Kills what runs in the namespaces, this process excepted, and deletes them. Those that are gone are no error.

    Raises OSError where one cannot be deleted.
    """
    names = list(names)
    if not names:
        return
    kill_all(names)
    for name in names:
        shutil.rmtree(OWN_FILES / name, ignore_errors=True)
    # The links go with the namespaces that hold them.
    commands = "".join(f"netns delete {name}\n" for name in names)
    done = subprocess.run(
        [ip, "-force", "-batch", "-"], input=commands, capture_output=True, text=True, timeout=30, check=False
    )
    deadline = time.monotonic() + _END_SECONDS
    # Someone else may be deleting the same ones at this moment.
    while (left := [name for name in names if (FOLDER / name).exists()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    if left:
        raise OSError(f"cannot delete the network namespaces {', '.join(left)}: {done.stderr.strip()}")


def remove_with_latecomers(names: Sequence[str], ip: str) -> None:
    """``remove``, of a lab whose process has died: what that had just started may come into a namespace that is gone."""
    with contextlib.ExitStack() as stack:
        inodes = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                # Open, so that no other namespace gets its number.
                inodes.add(os.fstat(stack.enter_context((FOLDER / name).open("rb")).fileno()).st_ino)
        remove(names, ip)
        deadline = time.monotonic() + _LATE_SECONDS
        while inodes and time.monotonic() < deadline:
            _kill_once(inodes)
            time.sleep(0.05)


def write_hosts(name: str, text: str) -> None:
    """The /etc/hosts of programs that are started in a namespace from now on."""
    folder = OWN_FILES / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts").write_text(text)


def kill_all(names: Iterable[str]) -> None:
    """Sends SIGKILL to everything in the namespaces, this process excepted, until nothing is left."""
    inodes = set()
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            inodes.add((FOLDER / name).stat().st_ino)
    deadline = time.monotonic() + _END_SECONDS
    # More than once, since a process may be forking while it is killed.
    while _kill_once(inodes) and time.monotonic() < deadline:
        time.sleep(0.001)


def _kill_once(inodes: set[int]) -> int:
    found = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        # A process may be gone between one line and the next, or not even root's to look at: none of ours.
        with contextlib.suppress(OSError):
            # The descriptor comes first, so that it is the process whose namespace is looked at that is killed.
            descriptor = os.pidfd_open(int(entry.name))
            try:
                if os.stat(f"/proc/{entry.name}/ns/net").st_ino in inodes:  # noqa: PTH116 (in a loop over all processes)
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    found += 1
            finally:
                os.close(descriptor)
    return found


def _start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; "" if it is gone or only its exit code is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


class Janitor:
    """Starts the janitor of the namespaces whose names begin with ``prefix``. ``close`` ends it, with what is left."""

    def __init__(self, prefix: str, ip: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, prefix, ip],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is not for the janitor
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    prefix, ip = sys.argv[1:]
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    sys.stdin.read()
    remove_with_latecomers(existing(prefix), ip)


if __name__ == "__main__":
    main()
