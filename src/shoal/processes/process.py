"""One started process.

It leads a session and process group of its own, so that all of its children can be ended with it. Its exit is noticed
by a thread that waits without reaping: until ``finish`` has killed the group the process stays a zombie, so its number
cannot have gone to a stranger, and a signal always reaches the one that it is meant for.
"""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from shoal.net import descriptors
from shoal.processes import shim
from shoal.processes.guard import Guard

Stream = int | IO[bytes]


class Watched(Protocol):
    """A process that a job watches, as ``Process``; here or on another host. Its output is pipes, which ``attend`` reads.

    ``output_ends``: whether that ends by itself once ``finish`` was called. A pipe of this machine may not: what holds it open
    may be in another session.
    """

    name: str
    output_ends: bool
    exit: concurrent.futures.Future[int]
    ended_at: float

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def running(self) -> bool: ...

    def signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    def finish(self) -> int: ...


class Child(Protocol):
    """A process that leads a session of its own."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Its exit code, negative for a signal, once it has ended. It stays a zombie."""

    def reap(self) -> None:
        """After its end, once."""


class Started:
    """A child that is watched. ``name`` is for messages.

    ``hands_on``: whether it hands on signals to its children, as far as they are for them. A shell does not: ``signal`` then
    reaches all of its group, as a terminal's Ctrl-C does.

    ``exit`` becomes the exit code, negative for the signal that ended it, once the process itself has ended, which was
    ``ended_at`` (monotonic seconds); call ``finish`` then.
    """

    output_ends = False

    def __init__(self, name: str, child: Child, guard: Guard, *, hands_on: bool = True) -> None:
        self.name = name
        self._hands_on = hands_on
        self.ended_at = 0.0
        self.exit: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._guard = guard
        self._child = child
        guard.watch(self.pid)
        # The lock keeps a signal from being sent between the last check and the reaping.
        self._lock = threading.Lock()
        self._finished = False
        threading.Thread(target=self._wait, name=f"shoal-wait-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def running(self) -> bool:
        return not self.exit.done()

    def ending(self) -> bool:
        """Whether it still runs, or what its signals have reached besides it (``hands_on``)."""
        return self.running() or not (self._hands_on or _is_empty(self.pid))

    def signal(self, number: int) -> None:
        """Sends a signal to the process; to its children only where it would not decide about them (``hands_on``)."""
        with self._lock:
            if not self._finished:
                with contextlib.suppress(ProcessLookupError):
                    (os.kill if self._hands_on else os.killpg)(self.pid, number)

    def kill(self) -> None:
        """Kills the process and all that it has started in its group."""
        with self._lock:
            if not self._finished:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def finish(self) -> int:
        """Kills what the process has left behind, reaps it and returns its exit code. Waits for its end."""
        code = self.exit.result()
        with self._lock:
            if not self._finished:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._child.reap()
                self._finished = True
                self._guard.forget(self.pid)
        return code

    def _wait(self) -> None:
        code = self._child.wait()
        self.ended_at = time.monotonic()
        self.exit.set_result(code)


class Process(Started):
    """Starts ``command`` (its first word a path); streams are as for ``subprocess.Popen``.

    Start it from a thread that lives as long as the process may: the kernel ends it with that thread.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        guard: Guard,
        *,
        stdin: Stream | None = subprocess.DEVNULL,
        stdout: Stream | None = None,
        stderr: Stream | None = None,
        pass_fds: Sequence[int] = (),
        directory: str | Path | None = None,
        hands_on: bool = True,
    ) -> None:
        # What this process has raised for itself is not for others.
        soft = descriptors.before()
        limit = "" if soft is None else str(soft)
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", shim.__file__, str(os.getpid()), limit, *command],
            env=dict(environment),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            cwd=directory,
            start_new_session=True,
        )
        super().__init__(name, _Opened(self._popen), guard, hands_on=hands_on)

    @property
    def stdin(self) -> IO[bytes] | None:
        """The writing end of its input, where ``subprocess.PIPE`` was asked for."""
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """The reading end of its output, where ``subprocess.PIPE`` was asked for."""
        return self._popen.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        return self._popen.stderr


class _Opened:
    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait(self) -> int:
        try:
            return exit_code(os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT))
        except ChildProcessError:  # someone else reaped it (SIGCHLD ignored): the code is gone
            return 255

    def reap(self) -> None:
        self._popen.wait()


def exit_code(result: os.waitid_result | None) -> int:
    """Of a process that has ended, negative for a signal."""
    assert result is not None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _is_empty(group: int) -> bool:
    """Whether nothing of a process group runs any more; zombies do not."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(its_group) == group and state not in "ZX":
                return False
    return True


def describe_exit(code: int) -> str:
    """ "failed with exit code 3" or "was ended by SIGKILL", for an exit code as of ``Process.exit``."""
    if code >= 0:
        return f"failed with exit code {code}" if code else "ended normally"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
