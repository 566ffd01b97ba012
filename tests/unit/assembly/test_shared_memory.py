"""Handing memory to the ranks of one machine: who gets it, and who does not."""

import asyncio
import os
import resource
import socket
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from shoal.assembly import shared_memory
from shoal.net import sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role

SECRET = b"a secret that is long enough"
INCARNATION = bytes(16)
DEADLINES = Deadlines(stranger=0.3, answer=2.0)


def node(rank: int, size: int = 2) -> shared_memory.Node:
    return shared_memory.Node(rank, tuple(range(size)), True, SECRET, INCARNATION, DEADLINES)


async def with_giver(then: Coroutine[Any, Any, Any]) -> Any:
    giver = shared_memory.Giver(node(0))
    try:
        return await then
    finally:
        await giver.close()


async def call(client: Client) -> socket.socket:
    link = sockets.watched(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    await asyncio.get_running_loop().sock_connect(link, node(1).name())
    await sockets.authenticate_client(link, client)
    return link


def test_a_rank_of_the_node_gets_memory() -> None:
    memory = asyncio.run(with_giver(shared_memory.receive(node(1))))
    assert os.fstat(memory.fileno()).st_size > 1_000_000
    assert not os.get_inheritable(memory.fileno())


def test_a_rank_that_comes_first_waits_for_it() -> None:
    async def comes_first() -> Any:
        receiving = asyncio.create_task(shared_memory.receive(node(1)))
        await asyncio.sleep(0.2)
        return await with_giver(receiving)  # type: ignore[arg-type]

    assert os.fstat(asyncio.run(comes_first()).fileno()).st_size > 1_000_000


def test_what_was_given_cannot_be_cut() -> None:
    memory = asyncio.run(with_giver(shared_memory.receive(node(1))))
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fileno(), 0)


@pytest.mark.parametrize(
    "client",
    [
        Client(b"another secret, as long as it", Role.MEMORY, 1, incarnation=INCARNATION),
        Client(SECRET, Role.MEMORY, 1, incarnation=bytes(15) + b"x"),
        Client(SECRET, Role.PEER, 1, incarnation=INCARNATION),
    ],
    ids=["secret", "job", "role"],
)
def test_who_has_no_part_in_the_job_gets_nothing(client: Client) -> None:
    with pytest.raises(HandshakeRefused):
        asyncio.run(with_giver(call(client)))


def test_where_no_memory_can_be_made_all_ranks_are_told_at_once() -> None:
    async def receive() -> float:
        begun = time.monotonic()
        with pytest.raises(OSError, match="rank 0 has no memory to share"):
            await shared_memory.receive(node(1))
        return time.monotonic() - begun

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        assert asyncio.run(with_giver(receive())) < DEADLINES.answer / 2
        with pytest.raises(OSError, match="memory"):
            asyncio.run(memory_of_a_giver())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def memory_of_a_giver() -> object:
    giver = shared_memory.Giver(node(0))
    try:
        return giver.memory
    finally:
        await giver.close()


def test_a_rank_that_finds_nobody_says_so() -> None:
    with pytest.raises(OSError, match=r"rank 0 did not answer"):
        asyncio.run(shared_memory.receive(node(1)))


def test_memory_for_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(OSError, match=r"bytes instead of"):
        asyncio.run(with_giver(shared_memory.receive(node(1, size=3))))
