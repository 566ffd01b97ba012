"""A whole job: its hosts, its servers, its ranks, their output, and an end for all of them together.

Order of events: other hosts are reached; the servers start and say where they listen; the ranks start; when the last rank
has ended, the servers are ended. When a rank fails, or a server, or a host is lost, the other ranks get a grace period, since
Shoal tells them itself and their own last words are worth having; then SIGTERM, then SIGKILL. The job's exit code is the first
failure's. Where a process runs, here or on another host, is its machine's affair (machines.py).

Everything happens in one event loop, in the thread that calls ``run``, which must be the main thread: signals arrive
there, and the kernel ends the processes with the thread that started them.
"""

import asyncio
import contextlib
import functools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shoal.errors import ConfigurationError
from shoal.net.descriptors import provide
from shoal.processes.description import JobDescription
from shoal.processes.environment import HOST, rank_environment, with_secret
from shoal.processes.guard import Guard
from shoal.processes.hosts import is_here
from shoal.processes.machines import Facts, Here, HostFailed, Machine, StartedServer, own_address
from shoal.processes.output import LINGER_SECONDS, Output, copy_lines
from shoal.processes.process import Watched, describe_exit
from shoal.processes.remote import EXIT_HOST_LOST, Remote
from shoal.processes.servers import ServerFailed
from shoal.processes.signals import around_stops, passed_on
from shoal.processes.ssh import Ssh

GRACE_SECONDS = 5.0
# After a signal from outside ranks may be writing a checkpoint.
GRACE_AFTER_SIGNAL_SECONDS = 30.0

EXIT_CANNOT_BEGIN = 1
EXIT_SERVER_FAILED = 1
EXIT_OUTPUT_BROKEN = 128 + signal.SIGPIPE

T = TypeVar("T")


class Job:
    """Runs a job once. ``environment`` is what servers and ranks inherit; ``ssh``: how other hosts are reached.

    ``ports``: SHOAL_PORT_RANGE, where that is set: MASTER_PORT, the next and the ports of servers are in it."""

    def __init__(
        self,
        description: JobDescription,
        environment: Mapping[str, str],
        stdout: Output,
        stderr: Output,
        ssh: Ssh = Ssh(),  # noqa: B008 (frozen)
        ports: tuple[int, int] | None = None,
    ) -> None:
        self._description = description
        self._ssh = ssh
        self._ports = ports
        self._environment = with_secret(environment)
        self._stdout = stdout
        self._stderr = stderr
        self._machines: dict[str, Machine] = {}
        self._servers: list[StartedServer] = []
        self._ranks: list[Watched] = []
        self._attendants: list[asyncio.Task[None]] = []
        self._code: int | None = None
        self._received: Counter[int] = Counter()

    async def run(self) -> int:
        """Runs the job to its end. The exit code: 0, or the first failure's, 128 + signal where it was a signal."""
        self._failed = asyncio.Event()
        self._stdout.broken = self._stderr.broken = lambda: self._fail(EXIT_OUTPUT_BROKEN)
        with passed_on(self._on_signal), around_stops(self._pause, self._resume), Guard() as guard:
            await self._run(guard)
        return self._code or 0

    async def _run(self, guard: Guard) -> None:
        seconds = asyncio.create_task(self._count_seconds())
        try:
            facts = await self._reach(guard)
            addresses = [] if self._failed.is_set() else await self._start_servers()
            # The servers have their ports by now: these two are none of them.
            found = [] if self._failed.is_set() else await self._results([self._machine_of_rank_0().master_port])
            if not self._failed.is_set():
                self._start_ranks(facts, addresses, found[0])
                await self._watch()
        finally:
            await self._end()
            seconds.cancel()

    async def _count_seconds(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for machine in self._each_machine():
                machine.second_passed()

    def _each_machine(self) -> set[Machine]:
        return set(self._machines.values())

    async def _reach(self, guard: Guard) -> dict[str, Facts]:
        """What the hosts that the ranks and servers are on say of themselves, by name."""
        homes = self._homes()
        names = dict.fromkeys(homes)
        named = [name for name in names if name]
        here = await self._results([functools.partial(is_here, name) for name in named])  # which may ask name servers
        elsewhere = [name for name, is_this in zip(named, here, strict=False) if not is_this]
        try:
            self._provide_descriptors([home in elsewhere for home in homes], len(elsewhere))
        except ConfigurationError as error:
            await self._say(str(error))
            self._fail(EXIT_CANNOT_BEGIN)
            return {}
        for name in elsewhere:
            self._machines[name] = Remote(name, self._ssh, self._environment, guard, self._ports)
        found = await self._results([self._machines[name].wait_ready for name in elsewhere])
        if self._failed.is_set():
            return {}
        this = Here(guard, self._ports, own_address([facts.client for facts in found]) if elsewhere else HOST)
        self._machines |= {name: this for name in names if name not in elsewhere}
        facts = dict.fromkeys(names, this.wait_ready()) | dict(zip(elsewhere, found, strict=True))
        if twice := self._description.named_twice({name: fact.machine for name, fact in facts.items()}):
            await self._say(twice)
            self._fail(EXIT_HOST_LOST)
        return facts

    def _homes(self) -> list[str]:
        """The host of each rank, then of each server."""
        servers = [self._description.host_of_server(index) for index in range(self._description.servers)]
        return [*(host for host, _ in self._description.placed()), *servers]

    def _provide_descriptors(self, elsewhere: Sequence[bool], hosts: int) -> None:
        """``elsewhere``: of each process, whether it is on another host; of which there are ``hosts``."""
        needed = {
            "output of processes here": 3 * elsewhere.count(False),  # and the pipe that says where a server listens
            "output of processes on other hosts": 4 * elsewhere.count(True),
            "ssh": 3 * hosts,
        }
        provide("shoal run", needed, {})

    async def _start_servers(self) -> list[str]:
        for index in range(self._description.servers):
            machine = self._machines[self._description.host_of_server(index)]
            server = machine.start_server(index, self._environment)
            self._servers.append(server)
            self._attend(server.process, f"server {index}", index)
        return await self._results([server.wait_ready for server in self._servers])

    def _machine_of_rank_0(self) -> Machine:
        return self._machines[self._description.placed()[0][0]]

    def _start_ranks(self, facts: Mapping[str, Facts], addresses: Sequence[str], master_port: int) -> None:
        placed = self._description.placed()
        places = [place for _, place in placed]
        first = facts[placed[0][0]]
        for rank, (host, _) in enumerate(placed):
            name = f"rank {rank} on {host}" if host else f"rank {rank}"
            environment = rank_environment(self._environment, places, rank, master_port, addresses, first.address)
            process = self._machines[host].start_rank(rank, name, self._description.program, environment)
            self._ranks.append(process)
            self._attend(process, str(rank), rank)

    async def _results(self, waits: Sequence[Callable[[], T]]) -> list[T]:
        """What these return, which wait. Nothing, if they or something else have failed."""
        ready = asyncio.gather(*(_in_thread(wait) for wait in waits))
        # On another failure what is waited for is ended, and with it this wait.
        await self._unless_failed([ready])
        if not ready.done():
            ready.add_done_callback(lambda future: future.exception())
            return []
        try:
            return list(ready.result())
        except (HostFailed, ServerFailed) as error:
            await self._say(str(error))
            self._fail(EXIT_HOST_LOST if isinstance(error, HostFailed) else EXIT_SERVER_FAILED)
            return []

    def _attend(self, process: Watched, name: str, number: int) -> None:
        task = attend(process, self._stdout, self._stderr, name, number, self._lingers)
        self._attendants.append(asyncio.create_task(task))

    def _lingers(self) -> float:
        """Seconds for what a process has left behind. A shell ends by SIGTERM at once; what it ran may write a checkpoint."""
        if self._description.program.is_python or not (self._received or self._failed.is_set()):
            return LINGER_SECONDS
        return GRACE_AFTER_SIGNAL_SECONDS if self._received else GRACE_SECONDS

    async def _watch(self) -> None:
        """Waits until every rank has ended well or something has failed; says what."""
        ranks = {_exit_of(process): process for process in self._ranks}
        servers = {_exit_of(server.process): server.process for server in self._servers}
        losses = [asyncio.wrap_future(machine.lost) for machine in self._each_machine()]
        while ranks and not self._failed.is_set():
            done = await self._unless_failed([*losses, *ranks, *servers])
            for lost in done.intersection(losses):
                await self._on_loss(f"{lost.result()}; ending the others")
            ended = [process for exit_, process in {**ranks, **servers}.items() if exit_ in done]
            for process in sorted(ended, key=lambda process: process.ended_at):
                await self._on_end(process, is_server=process in servers.values())
            ranks = {exit_: process for exit_, process in ranks.items() if exit_ not in done}

    async def _on_loss(self, reason: str) -> None:
        if not self._failed.is_set():
            self._fail(EXIT_HOST_LOST)
            await self._say(reason)

    async def _on_end(self, process: Watched, *, is_server: bool) -> None:
        code = process.exit.result()
        if self._failed.is_set() or (code == 0 and not is_server):
            return
        self._fail(EXIT_SERVER_FAILED if is_server else _shell_code(code))
        # Who ends by the signal that all were sent is no news.
        if -code not in self._received:
            await self._say(f"{process.name} {describe_exit(code)}; ending the others")

    async def _end(self) -> None:
        """Ends ranks, then servers, each as gently as it lets us, and waits until nothing is left of them."""
        if self._code != EXIT_OUTPUT_BROKEN:  # nobody would read last words
            grace = GRACE_AFTER_SIGNAL_SECONDS if self._received else GRACE_SECONDS
            await self._wait_for_exits(self._ranks, grace)
        await self._terminate(self._ranks)
        await self._terminate([server.process for server in self._servers])
        if self._attendants:
            await asyncio.wait(self._attendants)
        for machine in self._each_machine():
            if machine.lost.done():  # maybe with the end of an output
                await self._on_loss(machine.lost.result())
        await asyncio.gather(*(_in_thread(machine.close) for machine in self._each_machine()))

    async def _terminate(self, processes: Sequence[Watched]) -> None:
        for process in processes:
            if process.running():
                process.signal(signal.SIGTERM)
        await self._wait_for_exits(processes, GRACE_SECONDS)
        for process in processes:
            if process.running():
                process.kill()
        if any(process.running() for process in processes):
            self._hurry()

    def _hurry(self) -> None:
        """What does not end now is on a machine that does not answer."""
        for machine in self._each_machine():
            machine.hurry()

    async def _wait_for_exits(self, processes: Sequence[Watched], seconds: float) -> None:
        running = [_exit_of(process) for process in processes if process.running()]
        if running:
            await asyncio.wait(running, timeout=seconds)

    async def _unless_failed(self, futures: Sequence[asyncio.Future[Any]]) -> set[asyncio.Future[Any]]:
        """Waits for the first of some futures, or a failure; which of them are done."""
        failed = asyncio.ensure_future(self._failed.wait())
        await asyncio.wait([*futures, failed], return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        return {future for future in futures if future.done()}

    def _on_signal(self, number: int) -> None:
        self._received[number] += 1
        if self._received[signal.SIGINT] > 1:
            self._fail(128 + signal.SIGINT)
            for process in [*self._ranks, *(server.process for server in self._servers)]:
                process.kill()
            self._hurry()
        elif self._ranks:
            # To the ranks alone: servers must outlive what ranks still have to say.
            for process in self._ranks:
                process.signal(number)
        else:
            self._fail(128 + number)

    def _pause(self) -> None:
        for machine in self._each_machine():
            machine.pause()

    def _resume(self) -> None:
        for machine in self._each_machine():
            machine.resume()

    def _fail(self, code: int) -> None:
        """The first failure decides."""
        if self._code is None:
            self._code = code
        self._failed.set()

    async def _say(self, message: str) -> None:
        await self._stderr.write([f"shoal run: {message}".encode()])


async def attend(
    process: Watched,
    stdout: Output,
    stderr: Output,
    name: str,
    number: int,
    lingers: Callable[[], float] = lambda: LINGER_SECONDS,
) -> None:
    """Copies the output of a process until its end, then ends what it has left behind and reaps it.

    ``lingers``: seconds for what it has left behind and what still holds its output.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    reaped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    copies = [
        asyncio.create_task(copy_lines(source, output, output.prefix(name, number), reaped))
        for source, output in ((process.stdout, stdout), (process.stderr, stderr))
    ]
    await _exit_of(process)
    await asyncio.wait(copies, timeout=lingers())
    process.finish()
    if not process.output_ends:
        reaped.set_result(None)
    await asyncio.wait(copies)


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """What a call that waits returns, in a thread of its own. Those of asyncio's executor are few: with many hosts each wait
    would wait for others, and the executor's end for all of them."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(method: Callable[[Any], None], outcome: object) -> None:
        if not future.done():
            method(outcome)

    def run() -> None:
        method: Callable[[Any], None] = future.set_result
        outcome: object
        try:
            outcome = call()
        except Exception as error:
            method, outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, method, outcome)

    threading.Thread(target=run, daemon=True).start()
    return future


def _exit_of(process: Watched) -> asyncio.Future[int]:
    return asyncio.wrap_future(process.exit)


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
