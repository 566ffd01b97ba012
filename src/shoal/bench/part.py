"""One process's part in the benchmark: it waits for commands of the conductor and does what they say.

It measures nothing but itself: when its first submission was, when its last result was there, and the processor time in
between, all in its own clock. A result that is wrong is an error, never a figure. When the control connection breaks, the
process ends, whatever it was waiting for: nothing of a benchmark outlives its conductor.
"""

import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

import numpy

from shoal.bench import flow
from shoal.bench.channel import Channel, ChannelClosed, Message
from shoal.bench.contestants import Buffer, Contestant, FloatArray

# Content is a block of so many bytes, repeated.
_BLOCK_BYTES = 1024 * 1024
_SCALE = 1e-3
_CHECKED_VALUES = 1000


class WrongResult(ArithmeticError):
    """A contestant returned something else than the sum."""


class Part:
    """Serves the conductor at the other end of ``channel`` with the contestants that this process has joined."""

    def __init__(self, channel: Channel, contestants: Mapping[str, Contestant], host: str) -> None:
        self._channel = channel
        self._contestants = dict(contestants)
        self._host = host
        self._buffer: tuple[str, int, Buffer] | None = None
        self._listener: socket.socket | None = None
        self._commands: dict[str, Callable[[Message], Message]] = {
            "time": lambda command: {"now": time.monotonic_ns()},
            "prepare": self._prepare,
            "turn": self._turn,
            "forget": self._forget,
            "flow listen": self._flow_listen,
            "flow receive": self._flow_receive,
            "flow send": self._flow_send,
        }

    def serve(self, introduction: Message) -> None:
        """Introduces itself and does what it is told, until "quit". Raises ChannelClosed if the conductor is gone."""
        self._channel.send(introduction)
        while (command := self._channel.receive())["do"] != "quit":
            try:
                answer = self._commands[command["do"]](command)
            except Exception as error:
                self._channel.send({"error": f"{type(error).__name__}: {error}"})
                raise
            self._channel.send(answer)
        self._channel.close()

    def _prepare(self, command: Message) -> Message:
        """Fresh content in a buffer of its own, all of whose pages are there. The one before is forgotten first."""
        self._buffer = None
        name, size = command["contestant"], command["bytes"]
        contestant = self._contestants[name]
        block = _checked_block(contestant) if command["check"] else _gradient_block(contestant)
        self._buffer = (name, size, contestant.buffer(numpy.resize(block, size // 4)))
        return {}

    def _turn(self, command: Message) -> Message:
        """Barrier, then the operation ``repetitions`` times, each when the one before is done."""
        assert self._buffer is not None
        name, size, buffer = self._buffer
        contestant = self._contestants[name]
        contestant.barrier()
        cpu = _cpu_seconds()
        start = time.monotonic_ns()
        for _ in range(command["repetitions"]):
            buffer.allreduce()
        end = time.monotonic_ns()
        cpu = _cpu_seconds() - cpu
        if command["check"]:
            _check(name, contestant, buffer, size)
        return {"start": start, "end": end, "cpu": cpu}

    def _forget(self, command: Message) -> Message:
        self._buffer = None
        return {}

    def _flow_listen(self, command: Message) -> Message:
        self._listener = flow.listen(self._host)
        return {"host": self._host, "port": self._listener.getsockname()[1]}

    def _flow_receive(self, command: Message) -> Message:
        assert self._listener is not None
        listener, self._listener = self._listener, None
        return {"rate": flow.receive(listener)}

    def _flow_send(self, command: Message) -> Message:
        flow.send(command["host"], command["port"])
        return {}


def end_with_conductor(channel: Channel) -> None:
    """Ends this process when the other end of the channel is gone first. Costs a thread that sleeps in the kernel."""

    def watch() -> None:
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLRDHUP)
        poll.poll()
        if not channel.closed:
            os._exit(1)

    threading.Thread(target=watch, name="bench-watch", daemon=True).start()


def introduction(contestants: Mapping[str, Contestant], token: str, machine: str) -> Message:
    """What a process says first. ``machine``: two processes with different ones are joined by a network."""
    some = next(iter(contestants.values()))
    return {
        "token": token,
        "rank": some.rank,
        "size": some.size,
        "machine": machine,
        "pid": os.getpid(),
        "versions": {name: contestant.version for name, contestant in contestants.items()},
        "limits": {name: dict(contestant.limits) for name, contestant in contestants.items() if contestant.limits},
    }


def _gradient_block(contestant: Contestant) -> FloatArray:
    """Values like gradients, which cancel between two ranks: so however often they are summed, they stay finite."""
    pair, sign = contestant.rank // 2, 1 - 2 * (contestant.rank % 2)
    if contestant.size % 2 and contestant.rank == contestant.size - 1:
        sign = 0
    block: FloatArray = numpy.random.default_rng(pair).standard_normal(_BLOCK_BYTES // 4, dtype=numpy.float32)
    block *= numpy.float32(sign * _SCALE)
    return block


def _checked_block(contestant: Contestant) -> FloatArray:
    """Whole numbers, small enough that every order of summing them gives the same."""
    block: FloatArray = (numpy.arange(_BLOCK_BYTES // 4) % _CHECKED_VALUES).astype(numpy.float32)
    block += numpy.float32(contestant.rank)
    return block


def _check(name: str, contestant: Contestant, buffer: Buffer, size: int) -> None:
    n = contestant.size
    block = (numpy.arange(_BLOCK_BYTES // 4) % _CHECKED_VALUES).astype(numpy.float32) * numpy.float32(n)
    expected = numpy.resize(block + numpy.float32(n * (n - 1) // 2), size // 4)
    found = buffer.fetch()
    if not numpy.array_equal(found, expected):
        first = int(numpy.flatnonzero(found != expected)[0])
        raise WrongResult(
            f"{name} on rank {contestant.rank}: element {first} of a sum of {size} bytes is {found[first]}, not {expected[first]}"
        )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


__all__ = ["ChannelClosed", "Part", "WrongResult", "end_with_conductor", "introduction"]
