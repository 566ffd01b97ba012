"""Ranks that begin at once: each is forked from a process that has imported what it needs (forks.py).

Python, NumPy and PyTorch take seconds of processor time to be imported, which a suite of tests pays for every rank of
every job. A nursery pays it twice in all: it has two processes that only import, and ranks are forked from them by
turns, so that the seeds of hashes and the addresses of libraries differ between ranks as they do in a real job.

A rank from a nursery is a process with a session, an environment and an interpreter of its own, which ends as any does
(exit handlers, destructors). Two things are not as in a new process. What libraries read of the environment when they
are loaded was read before, so a rank with another value there is started anew (``has_read``). And all that was imported is
there, so tests of missing modules need new processes.
"""

import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from shoal.processes import Guard

LONGEST_MESSAGE = 1 << 17  # bytes
_READ_BY_LIBRARIES = (
    "GLIBC_",
    "GOMP_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NPY_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH_",
    "TORCH_",
)


class Nursery:
    """Two processes that have imported ``modules``. Use it, and the clusters in it, in one thread.

    ``environment``: of the processes, as far as libraries read it when they are loaded.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._guard = Guard()
        self._environment = dict(environment)
        self._parents = [_Parent(modules, self._environment, self._guard) for _ in range(2)]

    def has_read(self, environment: Mapping[str, str]) -> bool:
        """Whether what libraries read of this environment when they are loaded is what they have read here."""
        return _read_by_libraries(environment) == _read_by_libraries(self._environment)

    def fork(
        self, rank: int, arguments: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> "ForkedChild":
        """A rank that runs ``shoal.testing.worker`` with these arguments."""
        return self._parents[rank % 2].fork(arguments, environment, stdout, stderr)

    def close(self) -> None:
        for parent in self._parents:
            parent.close()
        self._guard.close()

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ForkedChild:
    """A rank, as ``shoal.processes.Child`` has it: its parent is the nursery's process, which is asked about its end."""

    def __init__(self, parent: "_Parent", pid: int) -> None:
        self._parent = parent
        self._pid = pid
        self._descriptor = os.pidfd_open(pid)

    @property
    def pid(self) -> int:
        return self._pid

    def wait(self) -> int:
        poll = select.poll()  # a descriptor beyond 1023 is none for select
        poll.register(self._descriptor, select.POLLIN)
        poll.poll()
        code: int = self._parent.ask("code", self._pid)
        return code

    def reap(self) -> None:
        self._parent.ask("reap", self._pid)
        os.close(self._descriptor)


class _Parent:
    """One of a nursery's processes, seen from without."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], guard: Guard) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shoal.testing.forks", str(theirs.fileno()), *modules],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        guard.watch(self._process.pid)

    def fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> ForkedChild:
        request = ("fork", (list(arguments), dict(environment), str(Path.cwd())))
        return ForkedChild(self, self.ask(*request, descriptors=[stdout.fileno(), stderr.fileno()]))

    def ask(self, what: str, argument: Any, descriptors: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [pickle.dumps((what, argument))], descriptors)
            answer = self._socket.recv(LONGEST_MESSAGE)
        if not answer:
            raise RuntimeError("a process of the nursery has ended: its stderr says why")
        return pickle.loads(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def _read_by_libraries(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_BY_LIBRARIES)}
