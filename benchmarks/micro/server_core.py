"""What a byte costs a server, beside what adding it and the kernel's copies of it cost alone; and what small operations take.

A server receives a byte from each node, adds it to the others', and sends as much back. Less processor time than these
three need is not to be had. Each is measured here alone: one pass of our own sum, and the kernel's TCP on this machine's
loopback in frames of the size that the server uses: what a process takes that returns the frames of as many connections,
one at a time from each. (It is a few lines of Python, a microsecond or two a frame.) A single flow that runs ahead as far
as it may is told beside it, send and receive apart: it packs small frames together, which an answer to each one cannot, and
large ones are out of the caches by the time they are read. What the server takes beyond the bound is what can be worked on.
Target: at most 1.5 times.

    python benchmarks/micro/server_core.py [--out FILE]

Takes a minute, and wants a machine that does nothing else.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import contextlib
import multiprocessing
import resource
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TextIO

import click
import numpy
from results import results_of
from server_cost import NODES, server_cost

import shoal
from shoal import _native
from shoal.bench.machine import machine_facts
from shoal.bench.sizes import show_bytes
from shoal.bench.watch import foreign_load
from shoal.testing import Cluster

KIB, MIB = 1024, 1024**2
FRAMES = (16 * KIB, 64 * KIB, 256 * KIB)
TARGET = 1.5

# The rounds of one figure; the median counts. What is measured together takes turns, for the machine's speed changes.
ROUNDS = 7
SECONDS = 0.25

_HEADER = bytes(40)
_WAIT = 30.0
_FLOAT32, _SUM = 1, 1

# (nodes, servers) and bytes of the operations whose time is told.
_SMALL_PLACES = ((4, 2), (8, 0))
_SMALL_SIZES = (KIB, 4 * KIB, 64 * KIB)


@dataclass(frozen=True)
class Server:
    """Of one server, NODES nodes and one frame size, each in seconds of processor time a byte received."""

    frame: int
    add: float
    send: float  # of a flow that runs freely, as the next one
    receive: float
    echo: float  # both, of a process that returns each frame
    server: float
    node: float
    rate: float  # bytes a second received by the server

    @property
    def bound(self) -> float:
        return self.add + self.echo


@dataclass(frozen=True)
class Small:
    """One small all-reduce: seconds from call to return, processor seconds of a rank, switches of its threads."""

    nodes: int
    servers: int
    size: int
    seconds: float
    cpu: float
    switches: float


def measure_servers() -> list[Server]:
    """One after the other in each round, so that all have the same machine."""
    turns: dict[int, list[Server]] = {frame: [] for frame in FRAMES}
    for _ in range(ROUNDS):
        for frame in FRAMES:
            send, receive = flow_cost(frame)
            server, node, rate = server_cost(frame)
            costs = Server(frame, add_cost(frame, NODES), send, receive, echo_cost(frame), server, node, rate)
            turns[frame].append(costs)
    return [_median(turn) for turn in turns.values()]


def add_cost(array_bytes: int, sources: int) -> float:
    """Seconds that our own sum takes for each byte of its sources, which have ``array_bytes`` each (float32)."""
    arrays = [numpy.full(array_bytes // 4, 1e-3, dtype=numpy.float32) for _ in range(sources + 1)]
    result, *contributions = [_native.Array(array) for array in arrays]
    calls = 0
    _native.reduce(result, contributions, _SUM, 1.0)
    began = now = time.perf_counter()
    while now - began < SECONDS / 2:
        _native.reduce(result, contributions, _SUM, 1.0)
        calls += 1
        now = time.perf_counter()
    return (now - began) / (calls * sources * array_bytes)


def flow_cost(frame: int) -> tuple[float, float]:
    """Processor seconds a byte of the sending and of the receiving process of one flow in frames of so many bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        report, [connection] = _connect(listener, 1, _send_frames, frame)
        with connection:
            received, cpu = _receive_for(connection, frame)
    if not report.poll(_WAIT):
        raise TimeoutError(f"the sender of {frame} byte frames did not end")
    sent, sender_cpu = report.recv()
    return sender_cpu / sent, cpu / received


def echo_cost(frame: int) -> float:
    """Processor seconds a byte of a process that receives a frame from each of NODES in turn and sends it back."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as open_connections:
        _, connections = _connect(listener, NODES, _exchange_frames, frame)
        for connection in connections:
            open_connections.enter_context(connection)
        memories = [memoryview(bytearray(len(_HEADER) + frame)) for _ in connections]
        count, before = 0, _cpu()
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            for connection, memory in zip(connections, memories, strict=True):
                _receive_frame(connection, memory)
            for connection, memory in zip(connections, memories, strict=True):
                connection.sendall(memory)
            count += len(connections)
        return (_cpu() - before) / (count * frame)


def _connect(
    listener: socket.socket, count: int, body: Callable[[int, int, Connection], None], frame: int
) -> tuple[Connection, list[socket.socket]]:
    """Processes that run ``body(port, frame, pipe)``, the other end of their pipe, and their connections to here."""
    here, there = multiprocessing.Pipe()
    forking = multiprocessing.get_context("fork")
    for _ in range(count):
        forking.Process(target=body, args=(listener.getsockname()[1], frame, there), daemon=True).start()
    listener.settimeout(_WAIT)
    connections = [listener.accept()[0] for _ in range(count)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(True)
    return here, connections


def _send_frames(port: int, frame: int, report: Connection) -> None:
    """Until the receiver closes."""
    payload, sent = bytes(frame), 0
    with _connection_to(port) as connection:
        before = _cpu()
        with contextlib.suppress(ConnectionError):
            while True:
                connection.sendall(payload)
                sent += frame
        report.send((sent, _cpu() - before))


def _exchange_frames(port: int, frame: int, _: Connection) -> None:
    """Until the other end closes: a frame there, and a frame back."""
    memory = memoryview(bytearray(len(_HEADER) + frame))
    with _connection_to(port) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(memory)
            _receive_frame(connection, memory)


def _connection_to(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=_WAIT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(True)
    return connection


def _receive_frame(connection: socket.socket, memory: memoryview) -> None:
    at = 0
    while at < len(memory):
        got = connection.recv_into(memory[at:])
        if got == 0:
            raise ConnectionResetError("the other end has closed")
        at += got


def _receive_for(connection: socket.socket, frame: int) -> tuple[int, float]:
    """Bytes received and the processor time for it; a frame's memory is written again by the next."""
    memory = bytearray(frame)
    count, before = 0, _cpu()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        got = connection.recv_into(memory)
        if got == 0:
            raise ConnectionResetError("the sender of the frames has ended")
        count += got
    return count, _cpu() - before


def measure_small() -> list[Small]:
    """The small operations of each place."""
    results = []
    for nodes, servers in _SMALL_PLACES:
        with Cluster(nodes, servers=servers) as cluster:
            job = cluster.start_script(__file__, "--small")
            job.results(_WAIT)
            for size, line in zip(_SMALL_SIZES, job.stdout(0).splitlines(), strict=True):
                results.append(Small(nodes, servers, size, *map(float, line.split())))
    return results


def _small() -> None:
    """A rank of ``measure_small``; rank 0 prints a line for each size."""
    shoal.init()
    for size in _SMALL_SIZES:
        values = numpy.zeros(size // 4, dtype=numpy.float32)
        _timed(lambda: shoal.allreduce_(values, op="sum"), 100)  # noqa: B023  (called before the next size)
        turns = [_timed(lambda: shoal.allreduce_(values, op="sum"), 200) for _ in range(ROUNDS)]  # noqa: B023
        if shoal.rank() == 0:
            print(*(statistics.median(column) for column in zip(*turns, strict=True)))
    shoal.shutdown()


def _timed(call: Callable[[], object], repetitions: int) -> tuple[float, float, float]:
    shoal.barrier()
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(repetitions):
        call()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return seconds / repetitions, cpu / repetitions, switches / repetitions


def _median(turns: Sequence[Server]) -> Server:
    """The turn whose server was the median against its own bound."""
    return sorted(turns, key=lambda turn: turn.server / turn.bound)[len(turns) // 2]


def _cpu() -> float:
    """Of all threads of this process, to the nanosecond."""
    return time.process_time()


def _describe(servers: Sequence[Server], small: Sequence[Small], facts: dict[str, str], file: TextIO) -> None:
    def say(line: str = "") -> None:
        print(line, file=file)

    say(
        f"A dedicated server and {NODES} nodes, processor nanoseconds for each byte that the server receives (and sends back)"
    )
    say()
    columns = ("add", "returning", "(receive)", "(send)", "bound", "server", "ratio", "a node", "GB/s in")
    say("frames   " + "".join(f"{column:>11}" for column in columns))
    for turn in servers:
        costs = (turn.add, turn.echo, turn.receive, turn.send, turn.bound, turn.server)
        cells = [f"{cost * 1e9:.3f}" for cost in costs]
        cells += [f"{turn.server / turn.bound:.2f}", f"{turn.node * 1e9:.3f}", f"{turn.rate / 1e9:.2f}"]
        say(f"{show_bytes(turn.frame):<9}" + "".join(f"{cell:>11}" for cell in cells))
    reached = all(turn.server <= TARGET * turn.bound for turn in servers)
    say(f"target: at most {TARGET} times the bound: {'reached' if reached else 'NOT reached'}")
    say()
    say(f"one pass of add over memory: {1e-9 / add_cost(32 * MIB, NODES):.1f} GB/s read of {NODES} arrays of 32 MiB,")
    say(
        f"{1e-9 / add_cost(64 * KIB, NODES):.1f} GB/s of {NODES} of 64 KiB, which the cache holds ({_native.reduce_backend()})"
    )
    say()
    say("Small all-reduces, one after another")
    say()
    say(f"{'nodes':>5}{'servers':>9}{'size':>9}{'time':>10}{'CPU of a rank':>15}{'its switches':>14}")
    for row in small:
        cells_of = f"{row.seconds * 1e6:>7.0f} µs{row.cpu * 1e6:>12.0f} µs{row.switches:>14.1f}"
        say(f"{row.nodes:>5}{row.servers:>9}{show_bytes(row.size):>9}{cells_of}")
    say()
    for name, fact in facts.items():
        say(f"{name}: {fact}")


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=results_of(__file__).with_suffix(".txt")
)
def main(out: Path) -> None:
    facts = machine_facts() | {"other load, before": f"{foreign_load():.2f} processors"}
    servers, small = measure_servers(), measure_small()
    with out.open("w") as file:
        _describe(servers, small, facts, file)
    print(out.read_text(), end="")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--small"]:
            _small()
        case _:
            main()
