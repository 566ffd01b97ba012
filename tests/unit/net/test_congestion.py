"""congestion.py: which congestion control connections have, and that both ends have it."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.config.addresses import Address, resolve
from shoal.net import congestion, listening, sockets


def available() -> set[str]:
    return set(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split())


def default() -> bytes:
    with socket.socket() as fresh:
        return congestion.in_use(fresh)


async def ends() -> tuple[bytes, bytes]:
    accepted: list[bytes] = []

    async def note(link: socket.socket, proven: Callable[[], None]) -> None:
        accepted.append(congestion.in_use(link))
        link.close()

    listener = listening.listen(Address("127.0.0.1", 0))[0]
    acceptor = listening.Acceptor([listener], note, lambda name, why: None, 1, lambda error: None)
    task = asyncio.create_task(acceptor.run())
    caller = await sockets.connect(*resolve(sockets.local_address(listener)))
    connecting = congestion.in_use(caller)
    assert await asyncio.get_running_loop().sock_recv(caller, 1) == b""
    caller.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return connecting, accepted[0]


def test_both_ends_have_the_machines_own_or_reno_for_bbr() -> None:
    expected = b"reno" if default() == b"bbr" else default()
    assert asyncio.run(asyncio.wait_for(ends(), 10)) == (expected, expected)


@pytest.mark.skipif("bbr" not in available(), reason="this kernel has no bbr")
def test_bbr_is_replaced_by_reno() -> None:
    with socket.socket() as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        congestion.prepare(link)
        assert congestion.in_use(link) == b"reno"


def test_what_is_far_away_gets_the_machines_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        monkeypatch.setattr(congestion, "round_trip", lambda link: 0.1)
        congestion.settle(link)
        assert congestion.in_use(link) == default()
