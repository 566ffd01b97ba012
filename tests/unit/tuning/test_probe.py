"""What a connection measures, and who lets itself be measured."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from local_front import SECRET, running
from shoal.assembly.listener import Listener
from shoal.config.addresses import Address, resolve
from shoal.net import listening, messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Refusal, Role
from shoal.net.messages import MessageError
from shoal.tuning import probe
from shoal.tuning.probe import NOTHING, ProbeResult

T = TypeVar("T")
INCARNATION = bytes(range(16))
LIMIT = 20.0


def within_limit(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, LIMIT))


def client(incarnation: bytes = INCARNATION, secret: bytes = SECRET) -> Client:
    return Client(secret, Role.MEASURE, 1, incarnation=incarnation)


async def connection() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection over loopback."""
    listener = listening.listen(Address("127.0.0.1", 0))[0]
    caller = await sockets.connect(*resolve(sockets.local_address(listener)))
    called, _ = await asyncio.get_running_loop().sock_accept(listener)
    listener.close()
    return caller, sockets.watched(called)


# --- One connection ---


@pytest.mark.parametrize("both", [False, True])
def test_bytes_are_counted_in_the_directions_asked_for(both: bool) -> None:
    async def measure() -> ProbeResult:
        caller, called = await connection()
        found, _ = await asyncio.gather(probe.call(caller, both), probe.answer(called))
        assert (caller.fileno(), called.fileno()) == (-1, -1)
        return found

    found = within_limit(measure())
    assert found.sent > 0
    assert (found.received > 0) == both
    assert 0 < found.round_trip < 10**6
    assert 0 < found.busy <= 100


def test_a_connection_that_breaks_has_measured_nothing() -> None:
    async def measure() -> ProbeResult:
        caller, called = await connection()
        asyncio.get_running_loop().call_later(0.02, called.close)
        return await probe.call(caller, True)

    assert within_limit(measure()) == NOTHING


def test_a_caller_that_says_something_else_is_refused() -> None:
    async def say() -> None:
        caller, called = await connection()
        with contextlib.closing(caller):
            await sockets.send(caller, messages.pack("job", {}))
            with pytest.raises(MessageError, match="'flow'"):
                await probe.answer(called)

    within_limit(say())


def test_cancelling_ends_the_thread() -> None:
    async def cancel() -> None:
        caller, called = await connection()
        measurement = asyncio.create_task(probe.call(caller, True))
        await asyncio.sleep(0.02)
        measurement.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measurement
        called.close()

    within_limit(cancel())
    deadline = time.monotonic() + LIMIT
    while any(thread.name == "shoal-measure" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread goes on"
        time.sleep(0.01)


def test_nobody_at_an_address_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = Address("127.0.0.1", listener.getsockname()[1])
    assert within_limit(probe.connect(client, nowhere, [])) is None


# --- Who lets measure ---


def test_a_dedicated_server_measures_with_those_who_hold_its_secret() -> None:
    async def measure(address: Address) -> ProbeResult:
        assert await probe.connect(lambda: client(secret=b"the secret of somebody else"), address, []) is None
        link = await probe.connect(client, address, [])
        assert link is not None
        return await probe.call(link, True)

    with running() as front:
        found = within_limit(measure(front.address))
    assert found.sent > 0
    assert found.received > 0


def with_listener(act: Callable[[Listener], Awaitable[None]]) -> None:
    async def run() -> None:
        listener = Listener(listening.listen(Address("127.0.0.1", 0)), SECRET, 0, Deadlines(answer=0.3))
        listener.open(INCARNATION, 4)
        try:
            await act(listener)
        finally:
            await listener.close()

    within_limit(run())


def test_a_rank_measures_before_the_welcome() -> None:
    async def measure(listener: Listener) -> None:
        link = await probe.connect(client, listener.address, [])
        assert link is not None
        assert (await probe.call(link, False)).sent > 0

    with_listener(measure)


def test_a_rank_measures_for_its_own_job_alone() -> None:
    async def call(listener: Listener) -> None:
        with pytest.raises(HandshakeRefused) as caught:
            await sockets.connect_as(client(bytes(16)), listener.address, [], LIMIT)
        assert caught.value.refusal == Refusal.UNKNOWN_INCARNATION

    with_listener(call)


def test_a_worker_is_not_let_in_before_the_welcome() -> None:
    async def call(listener: Listener) -> None:
        early = Client(SECRET, Role.SERVER, 1, incarnation=INCARNATION)
        link = await sockets.connect_as(early, listener.address, [], LIMIT)
        with contextlib.closing(link), pytest.raises(sockets.Closed):
            await sockets.receive_exactly(link, 1)
        assert listener.worker_links == {}

    with_listener(call)
