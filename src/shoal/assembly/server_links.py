"""A rank's links to the servers of its job: docs/protocol/format.md, Messages."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from shoal.assembly.meeting_point import MeetingPoint
from shoal.assembly.terms import Welcome, owner, rank_on
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError, PeerLost, ShoalError
from shoal.net import descriptors, messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role, refusal_error
from shoal.net.messages import MessageError
from shoal.net.redial import reach_rank
from shoal.tuning.shares import ServerPlace

_SAME_ORDER = ", or whether SHOAL_INTERFACE names interfaces of the same networks in the same order everywhere"

# Connections that a rank makes at a time.
_AT_ONCE = 64

_T = TypeVar("_T")


class ServerLinks:
    """The links of one rank, each introduced to its server. ``links``: by index, for whoever takes them over."""

    def __init__(self, settings: Settings, meeting_point: MeetingPoint, deadlines: Deadlines) -> None:
        self._rank = settings.rank
        self._encrypts = settings.encrypts
        self._name = rank_on(settings.rank, socket.gethostname())
        self._secret = meeting_point.secret
        self._sources = meeting_point.sources
        self._deadlines = deadlines
        self._ids: dict[int, bytes] = {}
        self.links: dict[int, socket.socket] = {}

    async def connect(self, welcome: Welcome) -> None:
        """Each lane of each server that is or may be used and is not our own, beginning at this rank's place in the list.

        Raises ShoalError for the first that cannot be had.
        """
        wanted = [
            (server * welcome.lanes + lane, place, lane)
            for server, place in enumerate(welcome.servers)
            for lane in range(welcome.lanes)
            if welcome.is_linked(place) and place.rank != self._rank
        ]
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(index: int, place: ServerPlace, lane: int) -> None:
            async with places:
                await self._connect_one(welcome, index, place, lane)

        first = self._rank % len(wanted) if wanted else 0
        await all_or_none([one(*target) for target in [*wanted[first:], *wanted[:first]]])

    def ids(self, welcome: Welcome, own: bytes) -> list[str]:
        """By server; "" for one that is not used and was not asked. ``own``: of the server in this process."""
        met = dict(self._ids)
        if welcome.is_linked(welcome.servers[self._rank]):
            met[self._rank] = own
        return [met[server].hex() if server in met else "" for server in range(len(welcome.servers))]

    def close(self) -> None:
        for link in self.links.values():
            link.close()

    async def _connect_one(self, welcome: Welcome, index: int, place: ServerPlace, lane: int) -> None:
        called = f"{self._name} called the server {place}"

        async def attempt() -> tuple[socket.socket, bytes]:
            client = Client(
                self._secret,
                Role.SERVER,
                self._rank,
                lane=lane,
                incarnation=welcome.incarnation,
                encrypts=self._encrypts,
            )
            where, answer = welcome.where(index), self._deadlines.answer
            sources = welcome.sources(index, self._rank) or self._sources
            if place.rank is None:
                reached = await sockets.reach(client, where, sources, answer)
            else:
                reached = await reach_rank(client, where, sources, answer, self._deadlines)
            assert reached.client.server_id is not None, "a handshake that is done has named the server"
            return reached.link, reached.client.server_id

        try:
            link, server_id = await again_until(self._deadlines.server, attempt)
        except HandshakeRefused as error:
            raise refusal_error(error, called) from None
        except OSError as error:
            if any(map(descriptors.exhausted, sockets.causes(error))):
                raise ConfigurationError(f"{called}: {sockets.why(error)}; {descriptors.HOW_TO_RAISE}") from None
            raise self._unreachable(place, index, welcome, error) from None
        try:
            self._note_id(index // welcome.lanes, place, server_id)
            # A rank may be late; rank 0 says when that is too late.
            await introduce(link, welcome, index, called, self._deadlines.answer if place.rank is None else None)
        except BaseException:
            link.close()
            raise
        self.links[index] = link

    def _note_id(self, server: int, place: ServerPlace, server_id: bytes) -> None:
        if self._ids.setdefault(server, server_id) != server_id:
            raise several_servers(self._name, place)

    def _unreachable(self, place: ServerPlace, index: int, welcome: Welcome, error: OSError) -> ShoalError:
        address = welcome.where(index)
        what = f"{self._name} cannot reach the server {place}"
        way, same_order = welcome.way(index, self._rank), _SAME_ORDER if welcome.rails else ""
        if place.rank is not None:
            stands_by = (
                ""
                if place.weight > 0
                else ". Ranks connect to each other's servers so that they can average when no dedicated server is left: with "
                "SHOAL_COLOCATED=never on every rank they do not, but then the loss of the last dedicated server ends the job"
            )
            return PeerLost(
                f"{what} at {address}{way} ({sockets.why(error)}): see whether it runs, and whether a firewall is between them "
                f"(SHOAL_PORT_RANGE says which ports are used){same_order}{stands_by}",
                place.rank,
                place.host,
            )
        return ConfigurationError(
            f"{what}{way and f' at {address}{way}'} ({sockets.why(error)}): start it there with `shoal server --host "
            f"{address.host} --port {address.port}`, or correct SHOAL_SERVERS{same_order}"
        )


async def introduce(
    link: socket.socket, welcome: Welcome, index: int, called: str, answer: float | None, attempt: int = 0
) -> None:
    """Says ``job`` to a server and hears that it takes it, within ``answer`` seconds or whenever it does.

    Raises ShoalError, which begins with ``called``.
    """
    try:
        await sockets.send(link, messages.pack("job", welcome.terms.job_fields(owner(), index, attempt)))
        said = await asyncio.wait_for(sockets.receive_message(link), answer)
    except (OSError, asyncio.TimeoutError, MessageError) as error:
        raise ShoalError(f"{called}, which did not take the job ({error}): see its output") from None
    if said.kind == "refused":
        refused = messages.error_of(said)
        raise type(refused)(f"{called}, which refused: {refused}")
    if said.kind != "ready":
        raise ShoalError(f"{called}, which said '{said.kind}' instead of 'ready': install the same version of Shoal")


def several_servers(who: str, place: ServerPlace) -> ConfigurationError:
    """The lanes of one server have ended at different ones."""
    return ConfigurationError(
        f"{who} reaches different servers as {place}, so it is a balancer of load or a name with several machines: name each "
        "server by itself in SHOAL_SERVERS"
    )


async def again_until(
    limit: float, attempt: Callable[[], Awaitable[tuple[socket.socket, bytes]]]
) -> tuple[socket.socket, bytes]:
    """Tries for ``limit`` seconds: a server may be about to start. Raises the last OSError, others at once."""
    clock = asyncio.get_running_loop().time
    deadline, pause = clock() + limit, 0.05
    while True:
        try:
            return await attempt()
        except OSError as error:
            if clock() + pause >= deadline or any(map(descriptors.exhausted, sockets.causes(error))):
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)


async def all_or_none(coroutines: list[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Waits for all; when one fails the others are cancelled and its error is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
