"""Dedicated servers on this machine, started for one job."""

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence

from shoal.processes.environment import HOST, server_environment
from shoal.processes.guard import Guard
from shoal.processes.process import Process, Stream, describe_exit
from shoal.processes.python import module_command

START_SECONDS = 60.0


class ServerFailed(RuntimeError):
    """A server of this job did not start."""


class ServerProcess:
    """A ``shoal server`` on this machine. It takes its secret from the environment given."""

    def __init__(
        self,
        index: int,
        environment: Mapping[str, str],
        guard: Guard,
        stdout: Stream | None,
        stderr: Stream | None,
        host: str,
        port: int | tuple[int, int],
        arguments: Sequence[str],
    ) -> None:
        self._ready, writing_end = os.pipe()
        try:
            self.process = Process(
                f"server {index}",
                [*_command(host, port, writing_end), *arguments],
                environment,
                guard,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[writing_end],
            )
        except BaseException:
            os.close(self._ready)
            raise
        finally:
            os.close(writing_end)

    def wait_ready(self, seconds: float = START_SECONDS) -> str:
        """Its ``host:port`` once it listens. Call once. Raises ServerFailed when it ends first, or takes too long."""
        try:
            said = self._read_line(time.monotonic() + seconds)
        finally:
            os.close(self._ready)
        host, _, port = said.strip().rpartition(" ")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _read_line(self, deadline: float) -> str:
        poll = select.poll()
        poll.register(self._ready, select.POLLIN)
        said = b""
        while not said.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise ServerFailed(f"{self.process.name} did not listen in time; is this machine overloaded?")
            data = os.read(self._ready, 256)
            if not data:
                code = self.process.exit.result()
                raise ServerFailed(f"{self.process.name} {describe_exit(code)} before it was ready; see its output")
            said += data
        return said.decode()


def _command(host: str, port: int | tuple[int, int], ready: int) -> list[str]:
    ports = ["--port", str(port)] if isinstance(port, int) else ["--port-range", *map(str, port)]
    return [*module_command("shoal.cli"), "server", "--host", host, *ports, "--ready-fd", str(ready)]


def start_server(
    index: int,
    environment: Mapping[str, str],
    guard: Guard,
    stdout: Stream | None = subprocess.PIPE,
    stderr: Stream | None = subprocess.PIPE,
    port: int | tuple[int, int] = 0,
    arguments: Sequence[str] = (),
    host: str = HOST,
) -> ServerProcess:
    """Starts a server at ``host``, an address of this machine; ``wait_ready`` tells where it listens.

    ``port`` 0: any free one; the first and the last of a range: any free one of these. Of Shoal's variables the server gets those
    that concern it. ``arguments``: further ones of ``shoal server``."""
    return ServerProcess(index, server_environment(environment), guard, stdout, stderr, host, port, arguments)
