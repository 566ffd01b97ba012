"""Handing memory to the ranks of one machine: who gets it, and who does not."""

import asyncio
import dataclasses
import os
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from shoal import inside, links
from shoal.addresses import Address
from shoal.config import Settings
from shoal.handshake import Client, HandshakeRefused, Role
from shoal.launchers import Launch
from shoal.patience import Patience

SECRET = b"a secret that is long enough"
DOOR = Address("127.0.0.1", 1)
INCARNATION = bytes(16)
PATIENCE = Patience(stranger=0.3, answer=2.0)


def settings(rank: int, size: int = 2, **changes: Any) -> Settings:
    return dataclasses.replace(Settings(Launch("test", rank, size, rank, size, None, 29500, "")), **changes)


async def with_giver(then: Coroutine[Any, Any, Any]) -> Any:
    giver = inside.Giver(settings(0), SECRET, DOOR)
    try:
        giver.give(INCARNATION, PATIENCE)
        return await then
    finally:
        await giver.close()


async def call(client: Client) -> socket.socket:
    link = links.watched(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    await asyncio.get_running_loop().sock_connect(link, inside._name(SECRET, DOOR))
    await links.authenticate_client(link, client)
    return link


def test_a_rank_of_the_job_gets_memory() -> None:
    memory = asyncio.run(with_giver(inside.receive(settings(1), SECRET, DOOR, INCARNATION, PATIENCE)))
    assert os.fstat(memory.fileno()).st_size > 1_000_000
    assert not os.get_inheritable(memory.fileno())


def test_what_was_given_cannot_be_cut() -> None:
    memory = asyncio.run(with_giver(inside.receive(settings(1), SECRET, DOOR, INCARNATION, PATIENCE)))
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


def test_a_rank_that_finds_nobody_says_so() -> None:
    with pytest.raises(OSError, match=r"refused"):
        asyncio.run(inside.receive(settings(1), SECRET, DOOR, INCARNATION, PATIENCE))


def test_memory_for_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(OSError, match=r"bytes instead of"):
        asyncio.run(with_giver(inside.receive(settings(1, size=3), SECRET, DOOR, INCARNATION, PATIENCE)))


def test_who_wants_it() -> None:
    assert inside.is_wanted(settings(0))
    assert not inside.is_wanted(settings(0, size=1))
    assert not inside.is_wanted(settings(0, size=inside.MOST_RANKS + 1))
    assert not inside.is_wanted(settings(0, algorithm="ring"))
    assert not inside.is_wanted(settings(0, launch=Launch("test", 0, 4, 0, 2, None, 29500, "")))
