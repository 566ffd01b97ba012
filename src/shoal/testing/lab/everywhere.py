"""One command on every host of a lab, its output line by line behind the host's number, and one end for all.

When it fails on one host the others get a grace period for last words, then SIGTERM, then SIGKILL; the exit code is the
first failure's. Signals are passed on; a second Ctrl-C kills. Everything happens in one event loop, in the thread that
calls ``run``, which must be the main thread: the kernel ends the processes with the thread that started them.
"""

import asyncio
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.processes import Guard, Process, describe_exit
from shoal.processes.job import EXIT_OUTPUT_BROKEN, GRACE_SECONDS, attend
from shoal.processes.output import Output
from shoal.processes.signals import passed_on
from shoal.testing.lab.hosts import Host
from shoal.testing.lab.lab import Lab


def lab_environment(lab: Lab, host: Host) -> dict[str, str]:
    """What a program is told about where it runs: LAB_HOST, LAB_HOSTS, LAB_ADDRESS, LAB_ADDRESSES."""
    return {
        "LAB_HOST": str(host.index),
        "LAB_HOSTS": str(len(lab.hosts)),
        "LAB_ADDRESS": host.address,
        "LAB_ADDRESSES": ",".join(lab.addresses),
    }


class Everywhere:
    """Runs ``command`` once on every host of ``lab``. ``environment`` is what it inherits, beside lab_environment."""

    def __init__(
        self, lab: Lab, command: Sequence[str], environment: Mapping[str, str], stdout: Output, stderr: Output
    ) -> None:
        self._lab = lab
        self._command = command
        # Output goes through a pipe, where Python would hold it back until 8 KiB have come together.
        self._environment = {"PYTHONUNBUFFERED": "1", **environment}
        self._stdout = stdout
        self._stderr = stderr
        self._processes: list[Process] = []
        self._received: Counter[int] = Counter()
        self._code = 0

    async def run(self) -> int:
        """The exit code: 0, or the first failure's, 128 + signal where it was a signal."""
        self._failed = asyncio.Event()
        self._stdout.broken = self._stderr.broken = lambda: self._fail(EXIT_OUTPUT_BROKEN)
        with passed_on(self._on_signal), Guard() as guard:
            attendants = [asyncio.create_task(self._start(host, guard)) for host in self._lab.hosts]
            try:
                await self._until_failed(attendants)
            finally:
                await self._end(attendants)
        return self._code

    async def _start(self, host: Host, guard: Guard) -> None:
        """One host's command, from its start to its end."""
        process = Process(
            host.name,
            host.command(self._command),
            {**self._environment, **lab_environment(self._lab, host)},
            guard,
            stdin=None if host.index == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._processes.append(process)
        watch = asyncio.create_task(self._watch(process))
        await attend(process, self._stdout, self._stderr, str(host.index), host.index)
        await watch

    async def _watch(self, process: Process) -> None:
        code = await asyncio.wrap_future(process.exit)
        if code == 0 or self._failed.is_set():
            return
        self._fail(128 - code if code < 0 else code)
        # Who ends by the signal that all were sent is no news.
        if -code not in self._received:
            message = f"shoal lab: the command on {process.name} {describe_exit(code)}; ending the others"
            await self._stderr.write([message.encode()])

    async def _until_failed(self, attendants: Sequence[asyncio.Task[None]]) -> None:
        failed: asyncio.Future[Any] = asyncio.create_task(self._failed.wait())
        everything: asyncio.Future[Any] = asyncio.gather(*attendants)
        await asyncio.wait([failed, everything], return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        if everything.done():
            everything.result()

    async def _end(self, attendants: Sequence[asyncio.Task[None]]) -> None:
        """Ends what still runs, as gently as it lets us, and waits until nothing is left of it."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            running = [process for process in self._processes if process.running()]
            if not running:
                break
            if number is not None:
                _signal_all(running, number)
            if self._code != EXIT_OUTPUT_BROKEN:  # nobody would read last words
                exits = [asyncio.wrap_future(process.exit) for process in running]
                await asyncio.wait(exits, timeout=GRACE_SECONDS)
        await asyncio.wait(attendants)

    def _on_signal(self, number: int) -> None:
        self._received[number] += 1
        again = self._received[signal.SIGINT] > 1
        if again:
            self._fail(128 + signal.SIGINT)
        _signal_all(self._processes, signal.SIGKILL if again else number)

    def _fail(self, code: int) -> None:
        """The first failure decides."""
        if not self._failed.is_set():
            self._code = code
        self._failed.set()


def run_everywhere(lab: Lab, command: Sequence[str], stdout: Output, stderr: Output) -> int:
    """Runs ``command`` on every host with this process's environment; the exit code."""
    return asyncio.run(Everywhere(lab, command, os.environ, stdout, stderr).run())


def _signal_all(processes: Sequence[Process], number: int) -> None:
    for process in processes:
        if number == signal.SIGKILL:
            process.kill()
        else:
            process.signal(number)
