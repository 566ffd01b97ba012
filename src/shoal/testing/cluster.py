"""Local clusters for tests: a Python function or a script on n ranks with k servers, all on this machine.

Every wait has a limit. What was started is ended, whatever happens, and nothing else is: when the cluster is closed,
and also when the process that made it dies. Use a cluster in one thread, which lives as long as the cluster.
"""

import concurrent.futures
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from shoal.processes import (
    Guard,
    Process,
    ServerProcess,
    Started,
    describe_exit,
    free_master_port,
    rank_environment,
    spread,
    start_server,
    with_secret,
)
from shoal.testing.call import Call, Result, read_result, write_call
from shoal.testing.nursery import Nursery

T = TypeVar("T")

SECONDS = 60.0
_LAST_WORDS_SECONDS = 5.0  # for the stacks that a rank dumps at the time limit
_TAIL_CHARACTERS = 4000  # of a rank's output, in messages
_JOB_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Outcome:
    """How one rank ended.

    ``exit_code`` is negative for a signal. ``value`` is what the function returned and ``exception`` what it raised
    (``traceback`` its text), both None for a script. ``stdout`` and ``stderr`` are all that the rank has written.
    """

    rank: int
    exit_code: int
    value: Any
    exception: BaseException | None
    traceback: str
    stdout: str
    stderr: str

    def describe(self) -> str:
        """A few lines for a message."""
        lines = [f"rank {self.rank} {describe_exit(self.exit_code)}"]
        if self.exception is not None:
            lines.append(f"{type(self.exception).__name__}: {self.exception}")
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            if text.strip():
                lines += [f"--- {name}", text.strip()[-_TAIL_CHARACTERS:]]
        return "\n".join(lines)


class RankFailed(AssertionError):
    """A rank failed that should not have. ``outcomes`` has all of them; the message says how each ended."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        failed = [outcome for outcome in outcomes if outcome.exit_code != 0]
        super().__init__("\n".join(outcome.describe() for outcome in failed))


class TimeLimitReached(AssertionError):
    """Ranks were still running at the time limit: they were made to dump their stacks to stderr, and killed."""

    def __init__(self, seconds: float, late: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        told = "\n".join(outcome.describe() for outcome in outcomes)
        super().__init__(f"ranks {list(late)} were still running after {seconds:g} s\n{told}")


class ClusterJob:
    """The ranks of one job, already running. Made by ``Cluster.start`` and ``Cluster.start_script``."""

    def __init__(self, processes: Sequence[Started], folder: Path) -> None:
        self.processes = list(processes)
        self._folder = folder

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to a rank: SIGKILL, SIGSTOP, SIGCONT ..."""
        self.processes[rank].signal(number)

    def stdout(self, rank: int) -> str:
        """What the rank has written until now."""
        return _text(self._folder / f"{rank}.stdout")

    def stderr(self, rank: int) -> str:
        return _text(self._folder / f"{rank}.stderr")

    def wait(self, timeout: float = SECONDS) -> list[Outcome]:
        """How each rank ended, by rank, when all have. Raises TimeLimitReached after ``timeout`` seconds.

        A rank that failed is an outcome, not an exception, and the other ranks are left alone.
        """
        late = self._wait_for_all(timeout)
        if late:
            for rank in late:
                # Python's faulthandler writes the stacks of all threads on SIGABRT; a stopped rank must run to do it.
                self.processes[rank].signal(signal.SIGABRT)
                self.processes[rank].signal(signal.SIGCONT)
            self._wait_for_all(_LAST_WORDS_SECONDS)
        self.kill()
        outcomes = [self._outcome(rank) for rank in range(len(self.processes))]
        if late:
            raise TimeLimitReached(timeout, late, outcomes)
        return outcomes

    def results(self, timeout: float = SECONDS) -> list[Any]:
        """What the function returned, by rank. Raises RankFailed when a rank did not end with 0, TimeLimitReached."""
        outcomes = self.wait(timeout)
        if any(outcome.exit_code != 0 for outcome in outcomes):
            raise RankFailed(outcomes)
        return [outcome.value for outcome in outcomes]

    def kill(self) -> None:
        """Ends every rank and whatever it has started, at once."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.finish()

    def _wait_for_all(self, seconds: float) -> list[int]:
        concurrent.futures.wait([process.exit for process in self.processes], timeout=seconds)
        return [rank for rank, process in enumerate(self.processes) if process.running()]

    def _outcome(self, rank: int) -> Outcome:
        result: Result = read_result(self._folder / f"{rank}.result")
        code = self.processes[rank].finish()
        return Outcome(
            rank, code, result.value, result.exception, result.traceback, self.stdout(rank), self.stderr(rank)
        )


class Cluster:
    """``ranks`` ranks cut into ``nodes`` nodes (default: one rank a node) with ``servers`` dedicated servers.

    The servers run from the start and serve any number of jobs. ``environment`` is added to that of this process, from
    which variables of Shoal and of an outer job are taken out first; a value of None takes one out. ``server_arguments``: of
    ``shoal server``.
    """

    def __init__(
        self,
        ranks: int,
        *,
        servers: int = 0,
        nodes: int | None = None,
        environment: Mapping[str, str | None] | None = None,
        server_arguments: Sequence[str] = (),
    ) -> None:
        self._server_arguments = server_arguments
        self._places = spread(ranks, nodes or ranks)
        self._environment = with_secret(_changed(_clean_environment(), environment or {}))
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-cluster-")
        self._guard = Guard()
        self._jobs: list[ClusterJob] = []
        self.servers: list[ServerProcess] = []
        try:
            self.servers += [self._start_server(index) for index in range(servers)]
            self.addresses = [server.wait_ready() for server in self.servers]
        except BaseException:
            self.close()
            raise

    def start(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        environment_of: Callable[[int], Mapping[str, str | None]] = lambda rank: {},
    ) -> ClusterJob:
        """Starts ``function(*arguments)`` on every rank; it must be at the top level of a module.

        ``environment_of(rank)`` is added to the environment of that rank alone.
        """
        folder = self._new_folder()
        call = folder / "call"
        write_call(call, Call.of(function, arguments))
        program = ["-m", "shoal.testing.worker"]
        return self._start(
            program, lambda rank: [str(call), str(folder / f"{rank}.result")], folder, environment_of, _nursery
        )

    def start_script(
        self,
        script: str | Path,
        *arguments: str,
        environment_of: Callable[[int], Mapping[str, str | None]] = lambda rank: {},
    ) -> ClusterJob:
        """Starts a Python script on every rank."""
        return self._start([str(script)], lambda rank: arguments, self._new_folder(), environment_of)

    @property
    def folder(self) -> Path:
        """Gone when the cluster is closed."""
        return Path(self._folder.name)

    def restart_server(self, index: int, environment: Mapping[str, str | None] | None = None) -> None:
        """Starts a server that has ended once more, at the same address, with changes to its environment."""
        self.servers[index].process.finish()
        port = int(self.addresses[index].rpartition(":")[2])
        self.servers[index] = self._start_server(index, port, environment)
        self.servers[index].wait_ready()

    def server_output(self, index: int) -> str:
        """What a server has written until now, stdout and stderr together."""
        return _text(Path(self._folder.name) / f"server.{index}")

    def close(self) -> None:
        """Ends jobs and servers. May be called again."""
        for job in self._jobs:
            job.kill()
        processes = [server.process for server in self.servers]
        for process in processes:
            process.signal(signal.SIGTERM)
        concurrent.futures.wait([process.exit for process in processes], timeout=_LAST_WORDS_SECONDS)
        for process in processes:
            process.kill()
            process.finish()
        self._guard.close()
        self._folder.cleanup()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start_server(
        self, index: int, port: int = 0, environment: Mapping[str, str | None] | None = None
    ) -> ServerProcess:
        with (Path(self._folder.name) / f"server.{index}").open("ab") as output:
            changed = _changed(self._environment, environment or {})
            return start_server(index, changed, self._guard, output, output, port, self._server_arguments)

    def _start(
        self,
        program: Sequence[str],
        arguments_of: Callable[[int], Sequence[str]],
        folder: Path,
        environment_of: Callable[[int], Mapping[str, str | None]],
        nursery: Nursery | None = None,
    ) -> ClusterJob:
        """``nursery``: whose ranks run that program."""
        port = free_master_port()
        processes: list[Started] = []
        job = ClusterJob(processes, folder)
        self._jobs.append(job)
        for rank in range(len(self._places)):
            environment = rank_environment(self._environment, self._places, rank, port, self.addresses)
            environment["PYTHONFAULTHANDLER"] = "1"
            environment = _changed(environment, environment_of(rank))
            with (folder / f"{rank}.stdout").open("wb") as out, (folder / f"{rank}.stderr").open("wb") as err:
                if nursery is not None and nursery.has_read(environment):
                    child = nursery.fork(rank, arguments_of(rank), environment, out, err)
                    job.processes.append(Started(f"rank {rank}", child, self._guard))
                else:
                    command = [sys.executable, *program, *arguments_of(rank)]
                    process = Process(f"rank {rank}", command, environment, self._guard, stdout=out, stderr=err)
                    job.processes.append(process)
        return job

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="job-", dir=self._folder.name))


# A default for the hundreds of clusters of a suite of tests, which know nothing of it.
_nursery: Nursery | None = None


@contextlib.contextmanager
def ranks_from(nursery: Nursery | None) -> Iterator[None]:
    """Until its end the ranks of ``Cluster.start`` and ``run_ranks`` come from this nursery, or are new processes."""
    global _nursery
    before, _nursery = _nursery, nursery
    try:
        yield
    finally:
        _nursery = before


def run_ranks(
    function: Callable[..., T],
    ranks: int,
    *arguments: Any,
    servers: int = 0,
    nodes: int | None = None,
    environment: Mapping[str, str | None] | None = None,
    timeout: float = SECONDS,
) -> list[T]:
    """Runs ``function(*arguments)`` on ``ranks`` ranks with ``servers`` servers; what it returned, by rank.

    Raises RankFailed when a rank did not end well and TimeLimitReached when one did not end in ``timeout`` seconds;
    ServerFailed when a server did not start.
    """
    with Cluster(ranks, servers=servers, nodes=nodes, environment=environment) as cluster:
        return cluster.start(function, *arguments).results(timeout)


def _clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SHOAL_") and name not in _JOB_VARIABLES
    }


def _changed(environment: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**environment, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
