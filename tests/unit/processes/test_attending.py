"""How a job reads the output of a process to its end, and what it does in threads."""

import asyncio
import os
import queue
import threading
import time

import pytest

from shoal.processes import job, output
from shoal.processes.frames import Kind
from shoal.processes.job import attend
from shoal.processes.output import Output
from shoal.processes.remote import RemoteProcess


def test_output_of_another_host_may_come_long_after_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that stands still keeps it in the pipes between the hosts, which an exit overtakes."""
    for module in (job, output):
        monkeypatch.setattr(module, "LINGER_SECONDS", 0.05)
    process = RemoteProcess("rank 1", 1, queue.SimpleQueue())
    reading, writing = os.pipe()

    async def run() -> None:
        out = Output(writing, colour=False)
        attendant = asyncio.create_task(attend(process, out, out, "1", 1))
        process.end(0)
        await asyncio.sleep(0.5)
        process.write(Kind.STDOUT, b"last words\n")
        for stream in (Kind.STDOUT, Kind.STDERR):
            process.write(stream, b"")
        await asyncio.wait_for(attendant, 10)

    asyncio.run(run())
    os.close(writing)
    with open(reading, "rb") as stream:  # noqa: PTH123 (a descriptor)
        assert stream.read() == b"[1] last words\n"


def test_a_wait_waits_for_no_other() -> None:
    """As many hosts as there may be, none of which answers, keep nothing from being done."""
    over = threading.Event()

    async def run() -> float:
        waits = [job._in_thread(over.wait) for _ in range(200)]
        started = time.monotonic()
        assert await asyncio.wait_for(job._in_thread(lambda: "done"), 10) == "done"
        took = time.monotonic() - started
        del waits
        return took

    try:
        assert asyncio.run(run()) < 10
    finally:
        over.set()
