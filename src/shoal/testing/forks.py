"""A process of a nursery (nursery.py): ``python -m shoal.testing.forks SOCKET MODULE...``.

It imports the modules, then carries out commands until the other end of the socket is closed: forks a rank, reports the
exit code of one that has ended, reaps it. It has one thread, so that a fork copies all of it.
"""

import gc
import importlib
import os
import pickle
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.processes import exit_code
from shoal.processes.shim import end_with_parent
from shoal.testing import worker
from shoal.testing.nursery import LONGEST_MESSAGE


def _requests(connection: socket.socket) -> Iterator[tuple[str, Any, list[int]]]:
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, LONGEST_MESSAGE, 2)
        if not data:
            return
        yield (*pickle.loads(data), descriptors)


def _serve(connection: socket.socket) -> bool:
    """Forks ranks until nobody asks any more. True in a rank."""
    for what, argument, descriptors in _requests(connection):
        answer = None
        if what == "fork":
            answer = _fork(connection, *argument, *descriptors)
            if answer == 0:
                return True
        elif what == "code":
            answer = exit_code(os.waitid(os.P_PID, argument, os.WEXITED | os.WNOWAIT))
        elif what == "reap":
            os.waitpid(argument, 0)
        connection.send(pickle.dumps(answer))
    return False


def _fork(
    connection: socket.socket,
    arguments: list[str],
    environment: dict[str, str],
    directory: str,
    stdout: int,
    stderr: int,
) -> int:
    """0 in the rank. In the nursery's process: the rank's number, once the rank leads its own session."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("threads have been started by imports: ranks cannot be forked from this process")
    parent = os.getpid()
    ready, told = os.pipe()
    pid = os.fork()
    os.close(told if pid else ready)
    if pid:
        os.read(ready, 1)
        for descriptor in (ready, stdout, stderr):
            os.close(descriptor)
        return pid
    connection.close()
    os.setsid()
    end_with_parent(parent)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in (stdout, stderr):
        os.close(descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [sys.argv[0], *arguments]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # as in a new process, where it comes from the system
    os.close(told)
    return 0


def main() -> None:
    descriptor, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a rank's collections pass by what was imported
    if _serve(socket.socket(fileno=int(descriptor))):
        worker.main()


if __name__ == "__main__":
    main()
