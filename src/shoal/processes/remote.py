"""A machine that is reached over ssh: an agent there (agent.py) starts what it is asked to, and ends with the connection.

One connection carries everything of one host. Secrets go over it, in what the agent reads from its standard input: they
are in no argument, and not in the environment of ssh. Three threads serve it: one writes requests, and says now and then that
it is still here; one reads answers, and writes output into pipes, from which a job reads it as if the process were here; one
keeps ssh's own last words. A reader who stands still stops them, then ssh, then the writing ranks, and no memory fills up.
"""

import collections
import concurrent.futures
import contextlib
import importlib.metadata
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from shoal.processes.environment import handed_on, server_environment
from shoal.processes.frames import HELLO, Frame, Kind, encode, frames_of
from shoal.processes.guard import Guard
from shoal.processes.machines import Facts, HostFailed
from shoal.processes.process import Process
from shoal.processes.program import Program
from shoal.processes.python import module_command, needed_by_python
from shoal.processes.servers import START_SECONDS, ServerFailed
from shoal.processes.ssh import CONNECT_SECONDS, Ssh, explain

EXIT_HOST_LOST = 255  # as ssh has it
_END_SECONDS = 10.0  # for an agent to end what is left, and itself
# Of an agent's silence: for a machine that is busy, whatever the peer timeout; for one where everything is to end.
_LEAST_PATIENCE_SECONDS = 5
_HURRIED_PATIENCE_SECONDS = 5
# A login shell may greet before the agent does.
_MOST_GREETINGS = 256 * 1024


class Remote:
    """Begins to reach ``host``, by ssh with this ``environment``, but for Shoal's variables. ``ports``: SHOAL_PORT_RANGE."""

    def __init__(
        self, host: str, ssh: Ssh, environment: Mapping[str, str], guard: Guard, ports: tuple[int, int] | None
    ) -> None:
        self.lost: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._host = host
        self._facts: concurrent.futures.Future[Facts] = concurrent.futures.Future()
        self._master_port: int | str = ""  # or why there is none
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._processes: dict[int, RemoteProcess] = {}
        self._said: collections.deque[str] = collections.deque(maxlen=20)
        self._asks_every = ssh.silence / 3  # seconds
        self._patience = max(ssh.silence, _LEAST_PATIENCE_SECONDS)
        self._silent = 0  # for so many seconds
        self._delivering = False
        self._given_up = ""
        self._directory = str(Path.cwd())
        self._closed = self._paused = False
        self._lock = threading.Lock()  # between a start and the end of the connection
        # All but what Python needs to begin, which may be secret, comes when it listens.
        needed = [f"{name}={value}" for name, value in needed_by_python(environment).items()]
        # A loss is noticed here first, and said.
        agent = ["env", *needed, *module_command("shoal.processes.agent"), str(2 * ssh.silence), *map(str, ports or ())]
        own = {name: value for name, value in environment.items() if not name.startswith("SHOAL_")}
        self._ssh = Process(
            f"ssh to {host}",
            ssh.command(host, agent),
            {
                **own,
                "SSH_ASKPASS_REQUIRE": "never",
            },  # a window that asks, for a jump host, which has not heard of BatchMode
            guard,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._threads = [
            threading.Thread(target=run, name=f"shoal-{host}", daemon=True)
            for run in (self._write_requests, self._read_answers, self._keep_words)
        ]
        for thread in self._threads:
            thread.start()

    def wait_ready(self) -> Facts:
        try:
            return self._facts.result(CONNECT_SECONDS + START_SECONDS)
        except concurrent.futures.TimeoutError:
            raise HostFailed(f"{self._host} did not answer in time: is that machine overloaded?") from None

    def master_port(self) -> int:
        if isinstance(self._master_port, str):
            raise HostFailed(f"{self._host}: {self._master_port}")
        return self._master_port

    def start_rank(self, rank: int, name: str, program: Program, environment: Mapping[str, str]) -> "RemoteProcess":
        """Its standard input is empty."""
        request = {
            "name": name,
            "command": program.command,
            "environment": handed_on(environment),
            "directory": self._directory,
            "hands_on": program.is_python,
        }
        return self._start(name, Kind.START, request)

    def start_server(self, index: int, environment: Mapping[str, str]) -> "RemoteServer":
        """In another folder than this one, so that what PYTHONPATH says of folders in this one is said in full."""
        own = {**server_environment(environment), **needed_by_python(environment)}
        request = {"index": index, "environment": handed_on(own)}
        process = self._start(f"server {index} on {self._host}", Kind.START_SERVER, request)
        return RemoteServer(process)

    def second_passed(self) -> None:
        """Seconds are counted, not looked up: none passes while this process is stopped.

        While what has come cannot be written, because the job's reader stands still, nothing more can be heard.
        """
        if self._delivering or not self._facts.done():
            self._silent = 0
            return
        self._silent += 1
        if self._silent > self._patience and not self._given_up:
            self._given_up = f"Shoal's agent there has not answered for {self._silent - 1} seconds"
            self._ssh.kill()

    def hurry(self) -> None:
        self._patience = _HURRIED_PATIENCE_SECONDS
        self._asks_every = min(self._asks_every, 1.0)
        self._requests.put(encode(Kind.STILL_HERE))

    def pause(self) -> None:
        self._paused = True
        self._requests.put(encode(Kind.PAUSE))

    def resume(self) -> None:
        self._paused = False
        self._silent = 0
        self._requests.put(encode(Kind.STILL_HERE))

    def close(self) -> None:
        self._closed = True
        self._requests.put(None)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            # Whoever has not been heard has started nothing.
            self._ssh.exit.result(_END_SECONDS if self._facts.done() and not self.lost.done() else 0)
        self._ssh.kill()
        self._ssh.finish()
        for thread in self._threads:
            thread.join(timeout=1.0)  # what ssh has started may hold its streams open

    def _start(self, name: str, kind: Kind, request: Mapping[str, Any]) -> "RemoteProcess":
        with self._lock:
            number = len(self._processes)
            process = RemoteProcess(name, number, self._requests)
            self._processes[number] = process
            if self.lost.done():
                process.lose(self.lost.result())
        self._requests.put(encode(kind, number, request))
        return process

    def _write_requests(self) -> None:
        assert self._ssh.stdin is not None
        with contextlib.suppress(OSError), self._ssh.stdin as stream:
            while (request := self._next_request()) is not None:
                stream.write(request)
                stream.flush()

    def _next_request(self) -> bytes | None:
        try:
            return self._requests.get(timeout=None if self._paused else self._asks_every)
        except queue.Empty:
            return encode(Kind.STILL_HERE)

    def _keep_words(self) -> None:
        assert self._ssh.stderr is not None
        for line in self._ssh.stderr:
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        if words := line.decode(errors="replace").strip():
            self._said.append(words)

    def _read_answers(self) -> None:
        assert self._ssh.stdout is not None
        why = ""
        with self._ssh.stdout as stream:
            try:
                if self._read_hello(stream):
                    for answer in frames_of(stream):
                        self._silent = 0
                        self._delivering = True
                        self._on_answer(answer)
                        self._delivering = False
            except (ValueError, KeyError, TypeError, concurrent.futures.InvalidStateError) as error:
                why = f"what came from there is none of an agent's answers ({error})"
        self._on_end(why or self._given_up)

    def _read_hello(self, stream: IO[bytes]) -> bool:
        """False if there is none, or another version's."""
        left = _MOST_GREETINGS
        while left > 0 and (line := stream.readline(left)):
            left -= len(line)
            _, marker, text = line.partition(HELLO)
            if marker:
                self._said.clear()  # greetings
                return self._greet(json.loads(text))
            self._keep(line)
        return False

    def _greet(self, hello: Mapping[str, Any]) -> bool:
        own = importlib.metadata.version("shoal")
        if hello["version"] != own:
            self._facts.set_exception(
                HostFailed(
                    f"{self._host} has version {hello['version']} of Shoal and this machine {own}: install the same on every host"
                )
            )
            return False
        self._master_port = hello["master_port"]
        self._facts.set_result(Facts(str(hello["address"]), str(hello["machine"]), str(hello["client"])))
        return True

    def _on_answer(self, answer: Frame) -> None:
        if answer.kind == Kind.STILL_HERE:
            return
        process = self._processes[answer.process]
        if answer.kind in (Kind.STDOUT, Kind.STDERR):
            process.write(answer.kind, answer.payload)
        elif answer.kind == Kind.EXIT:
            process.end(int(answer.value))
        elif answer.kind == Kind.LISTENS:
            process.listens.set_result(str(answer.value))
        elif answer.kind == Kind.NOT_READY:
            process.listens.set_exception(ServerFailed(f"{answer.value} (on {self._host})"))

    def _on_end(self, why: str) -> None:
        """ssh has ended, or nothing more can be understood. Whatever ran there is over, as far as anybody here will know."""
        if why:
            self._ssh.kill()
        code = self._ssh.exit.result()
        self._threads[-1].join(timeout=1.0)  # what it has started may hold its stderr open
        if not self._facts.done():
            self._facts.set_exception(HostFailed(why or explain(self._host, list(self._said), code)))
        said = why or "; ".join(list(self._said)[-3:]) or f"its connection ended with exit code {code}"
        reason = f"{self._host} is lost: {said}"
        with self._lock:
            if not self._closed:
                self.lost.set_result(reason)
            for process in self._processes.values():
                process.lose(reason)


class RemoteProcess:
    """A process on another host, as ``process.Watched`` has it. The agent, or the loss of the host, ends its output."""

    output_ends = True

    def __init__(self, name: str, number: int, requests: "queue.SimpleQueue[bytes | None]") -> None:
        self.name = name
        self.exit: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.ended_at = 0.0
        self.listens: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._number = number
        self._requests = requests
        self._pipes = {Kind.STDOUT: _Pipe(), Kind.STDERR: _Pipe()}

    @property
    def stdout(self) -> IO[bytes]:
        return self._pipes[Kind.STDOUT].reading

    @property
    def stderr(self) -> IO[bytes]:
        return self._pipes[Kind.STDERR].reading

    def running(self) -> bool:
        return not self.exit.done()

    def signal(self, number: int) -> None:
        self._requests.put(encode(Kind.SIGNAL, self._number, int(number)))

    def kill(self) -> None:
        self._requests.put(encode(Kind.KILL, self._number))

    def finish(self) -> int:
        """Has what it has left behind ended there, soon."""
        code = self.exit.result()
        self._requests.put(encode(Kind.FINISH, self._number))
        return code

    def write(self, stream: Kind, data: bytes) -> None:
        """What it has written; nothing is the end."""
        self._pipes[stream].write(data)

    def end(self, code: int) -> None:
        self.ended_at = time.monotonic()
        self.exit.set_result(code)

    def lose(self, reason: str) -> None:
        """Nothing more will come from there."""
        for pipe in self._pipes.values():
            pipe.write(b"")
        if self.running():
            self.end(EXIT_HOST_LOST)
        if not self.listens.done():
            self.listens.set_exception(ServerFailed(reason))


class RemoteServer:
    """A dedicated server on another host."""

    def __init__(self, process: RemoteProcess) -> None:
        self.process = process

    def wait_ready(self) -> str:
        try:
            return self.process.listens.result(2 * START_SECONDS)
        except concurrent.futures.TimeoutError:
            raise ServerFailed(f"{self.process.name} did not listen in time") from None


class _Pipe:
    """Output on its way from the thread that reads answers to the job."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self.reading = open(reading, "rb", buffering=0)  # noqa: PTH123, SIM115 (a descriptor; the job closes it)
        self._open = True

    def write(self, data: bytes) -> None:
        """Nothing is the end. What nobody reads any more is dropped."""
        if not self._open:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._writing, rest) :]
        except OSError:
            data = b""
        if not data:
            self._open = False
            os.close(self._writing)
