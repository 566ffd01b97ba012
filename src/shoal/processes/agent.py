"""The agent: what ``shoal run`` starts on another host, by ssh. It starts that host's ranks and servers, and ends with them.

    python -m shoal.processes.agent SECONDS [FIRST LAST]    # but for the folder that it is started in (python.py)

It says hello, then does what the frames on its standard input say (frames.py), and answers on its standard output.
Processes are started, watched and ended by the same code as on the launcher's own machine. When its standard input ends, or
nothing has come there for SECONDS, the launcher, its ssh or the network between them is gone: the agent ends what still
runs, with SIGTERM and a grace period, and then itself. If the agent is killed the guard does so (guard.py). FIRST and LAST are
SHOAL_PORT_RANGE.

What a process inherits is this host's own environment, without Shoal's variables, and over it what the launcher sends.
"""

import importlib.metadata
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from shoal.processes.environment import free_master_port
from shoal.processes.frames import HELLO, Frame, Kind, encode, encode_bytes, frames_of
from shoal.processes.guard import Guard
from shoal.processes.machines import own_address
from shoal.processes.output import LINGER_SECONDS
from shoal.processes.process import Process
from shoal.processes.servers import ServerFailed, ServerProcess, start_server
from shoal.tuning.topology import machine

GRACE_SECONDS = 5.0
EXIT_CANNOT_START = 127
_CHUNK_BYTES = 64 * 1024
_ABOUT_FOLDERS = "shoal run starts ranks in the folder of that path on every host"


class _Attended(NamedTuple):
    """A process and whether it was finished (Kind.FINISH)."""

    process: Process
    finished: threading.Event


class Agent:
    """Does what frames say, in the thread that calls ``follow``; answers go to the descriptor ``answers``, from any thread."""

    def __init__(self, answers: int, address: str, ports: tuple[int, int] | None, guard: Guard) -> None:
        self._answers = answers
        self._address = address
        self._ports = ports
        self._guard = guard
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self._processes: dict[int, _Attended] = {}
        self._answering = threading.Lock()
        self._asked = threading.Event()
        self._ending = threading.Lock()
        self._heard = time.monotonic()

    def follow(self, requests: IO[bytes], patience: float) -> None:
        """Until requests end, or none has come for ``patience`` seconds, and all that was started has ended."""
        threading.Thread(target=self._watch, args=(patience,), name="shoal-silence", daemon=True).start()
        threading.Thread(target=self._be_here, name="shoal-here", daemon=True).start()
        for request in frames_of(requests):
            self._heard = math.inf if request.kind == Kind.PAUSE else time.monotonic()
            self._do(request)
            self._asked.set()
        self._end()

    def _do(self, request: Frame) -> None:
        if request.kind == Kind.START:
            self._start(request.process, **request.value)
        elif request.kind == Kind.START_SERVER:
            self._start_server(request.process, **request.value)
        elif request.process in self._processes:
            process, finished = self._processes[request.process]
            if request.kind == Kind.SIGNAL:
                process.signal(request.value)
            elif request.kind == Kind.KILL:
                process.kill()
            elif request.kind == Kind.FINISH:
                process.finish()
                finished.set()
                del self._processes[request.process]

    def _start(
        self, number: int, name: str, command: list[str], environment: Mapping[str, str], directory: str, hands_on: bool
    ) -> None:
        try:
            process = Process(
                name,
                command,
                {**self._environment, **environment},
                self._guard,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                directory=directory,
                hands_on=hands_on,
            )
        except (OSError, ValueError) as error:  # no text for this host's encoding is the latter
            self._cannot_start(number, f"cannot start in {directory}: {_words(error)} ({_ABOUT_FOLDERS})")
        else:
            self._attend(number, process)

    def _start_server(self, number: int, index: int, environment: Mapping[str, str]) -> None:
        try:
            own = {**self._environment, **environment}
            server = start_server(index, own, self._guard, host=self._address, port=self._ports or 0)
        except (OSError, ValueError) as error:
            reason = f"cannot start server {index}: {_words(error)}"
            self._answer(encode(Kind.NOT_READY, number, reason))
            self._cannot_start(number, reason)
        else:
            self._attend(number, server.process)
            threading.Thread(target=self._await_ready, args=(number, server), daemon=True).start()

    def _await_ready(self, number: int, server: ServerProcess) -> None:
        try:
            self._answer(encode(Kind.LISTENS, number, server.wait_ready()))
        except ServerFailed as error:
            self._answer(encode(Kind.NOT_READY, number, str(error)))

    def _attend(self, number: int, process: Process) -> None:
        finished = threading.Event()
        self._processes[number] = _Attended(process, finished)
        assert process.stdout is not None
        assert process.stderr is not None
        for kind, source in ((Kind.STDOUT, process.stdout), (Kind.STDERR, process.stderr)):
            threading.Thread(target=self._copy, args=(number, kind, source, finished), daemon=True).start()
        process.exit.add_done_callback(lambda exit_: self._answer(encode(Kind.EXIT, number, exit_.result())))

    def _cannot_start(self, number: int, reason: str) -> None:
        here = socket.gethostname()
        words = f"{here}: {reason}\n"
        for kind, payload in ((Kind.STDERR, words.encode()), (Kind.STDERR, b""), (Kind.STDOUT, b"")):
            self._answer(encode_bytes(kind, number, payload))
        self._answer(encode(Kind.EXIT, number, EXIT_CANNOT_START))

    def _copy(self, number: int, kind: Kind, source: IO[bytes], finished: threading.Event) -> None:
        """To the stream's end. Of a process that is finished this is also that nothing has come for LINGER_SECONDS: then it is a
        stranger who holds the stream open."""
        poll = select.poll()
        with source:
            poll.register(source, select.POLLIN)
            while True:
                is_last = finished.is_set()
                if poll.poll(LINGER_SECONDS * 1000):
                    data = os.read(source.fileno(), _CHUNK_BYTES)
                    self._answer(encode_bytes(kind, number, data))
                    if not data:
                        return
                elif is_last:
                    break
        self._answer(encode_bytes(kind, number, b""))

    def _be_here(self) -> None:
        """Answers, whatever the request, in a thread of its own: the one that follows requests must not wait for a launcher whose
        reader stands still."""
        while self._asked.wait():
            self._asked.clear()
            self._answer(encode(Kind.STILL_HERE))

    def _answer(self, frame: bytes) -> None:
        rest = memoryview(frame)
        with self._answering:
            try:
                while rest:
                    rest = rest[os.write(self._answers, rest) :]
            except OSError:
                pass  # ssh is gone; the end of the requests is noticed too

    def _watch(self, patience: float) -> None:
        while (left := self._heard + patience - time.monotonic()) > 0:
            time.sleep(min(left, patience))
        self._end()
        os._exit(1)  # the other thread may wait for a request for ever

    def _end(self) -> None:
        """Ends what still runs, as gently as it lets us."""
        with self._ending:
            processes = [process for process, _ in self._processes.values()]
            self._processes.clear()
            for process in processes:
                process.signal(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and any(process.ending() for process in processes):
                time.sleep(0.05)
            for process in processes:
                process.kill()
                process.finish()


def _words(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _hello(ports: tuple[int, int] | None) -> dict[str, Any]:
    """``address``: of this host, as ssh has reached it where that is its own; ``client``: where that came from, or "";
    ``machine``: its name among the nodes of a job; ``master_port``: a port, or why none is free, which matters to rank 0's
    host alone."""
    client, _, own, _ = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]
    address = own_address([own])
    return {
        "version": importlib.metadata.version("shoal"),
        "address": address,
        "client": client,
        "master_port": _master_port(address, ports),
        "machine": machine(),
    }


def _master_port(address: str, ports: tuple[int, int] | None) -> int | str:
    try:
        return free_master_port(address, ports)
    except RuntimeError as error:
        return str(error)


def main() -> None:
    patience, *numbers = sys.argv[1:]
    ports = (int(numbers[0]), int(numbers[1])) if numbers else None
    # What is printed here by mistake must not come between the frames.
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    hello = _hello(ports)
    os.write(answers, HELLO + json.dumps(hello).encode("ascii") + b"\n")
    with open(requests, "rb") as stream, Guard() as guard:  # noqa: PTH123 (a descriptor)
        Agent(answers, hello["address"], ports, guard).follow(stream, float(patience))


if __name__ == "__main__":
    main()
