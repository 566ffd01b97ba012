"""The coordinator's side of joining, on rank 0: docs/protocol/lifecycle.md, Joining.

Three phases, each a module: all ranks join (gather), their links are measured (measure), all connect to the servers
(connect). Then rank 0 says ``go``. An error of one rank ends the attempt for all, and all hear why; for a moment, ranks
that come later still hear it too. Strangers are dropped and cost nothing more.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping

from shoal.assembly.connect import connect, welcome_of, welcome_over_rails
from shoal.assembly.control_links import ControlLinks, Joining, stop
from shoal.assembly.find_rails import find_rails
from shoal.assembly.gather import Gathering
from shoal.assembly.measure import measure
from shoal.assembly.meeting_point import MeetingPoint
from shoal.assembly.terms import rank_on
from shoal.assembly.unproven_callers import EXPLAINING
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError, ShoalError
from shoal.net import descriptors, listening, messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role, Server
from shoal.net.messages import Message, MessageError
from shoal.net.rejections import Rejections

# Strangers that are looked at beside the job's own ranks.
_STRANGERS = 64


class Rendezvous:
    """One attempt to bring a job together.

    ``meeting_point``: with listeners, which are closed when this is over. ``own``: one end of a pair of sockets; rank 0's
    own worker uses the other end as every other worker uses its control link. ``overrides``: limits that are not to be
    found by measuring. ``shared``: what must be equal everywhere.
    """

    def __init__(
        self,
        settings: Settings,
        overrides: Mapping[str, int],
        shared: dict[str, str],
        meeting_point: MeetingPoint,
        own: socket.socket,
        deadlines: Deadlines,
    ) -> None:
        self._settings = settings
        self._overrides = overrides
        self._meeting_point = meeting_point
        self._own = own
        self._deadlines = deadlines
        self._rejections = Rejections("rank 0")
        self._name = rank_on(0, socket.gethostname())
        self._id = os.urandom(16)
        self._links = ControlLinks(deadlines)
        self._gathering = Gathering(settings, shared, meeting_point, self._links, deadlines)
        self._farewell: _Farewell | None = None

    async def reached_at(self) -> list[str]:
        """This machine's addresses at which the other ranks have reached it, by rank, once all of them have joined.

        Raises what went wrong before.
        """
        return await asyncio.shield(self._gathering.reached)

    async def run(self) -> dict[int, socket.socket]:
        """The control links of the other ranks, each having heard ``go``. Raises what went wrong, once all know it."""
        accepting = asyncio.create_task(
            listening.Acceptor(
                self._meeting_point.listeners,
                self._admit,
                self._rejections.note,
                self._settings.size + _STRANGERS,
                self._has_no_descriptors,
            ).run()
        )
        own = asyncio.create_task(self._admit_own())
        complete = False
        try:
            descriptors.provide(self._name, {"control connections of the other ranks": self._settings.size - 1}, {})
            shares_memory = await self._bring_together()
            complete = True
        except ShoalError as error:
            if not self._gathering.reached.done():
                self._gathering.reached.set_exception(error)
                self._gathering.reached.exception()  # it is raised below, whether anyone waits for it here or not
            await self._refuse(error, own)
            raise
        finally:
            await stop(accepting, own)
            await self._links.stop()
            if not complete:
                self._close()
        return await self._go(shares_memory)

    async def _bring_together(self) -> bool:
        """The three phases. Whether the ranks of each node share memory."""
        await self._gathering.run()
        incarnation = os.urandom(16)
        # No rank that joins from here on fits, and checking says why.
        one_too_many = self._gathering.checked
        members = self._links.in_order()

        def client() -> Client:
            secret, encrypts = self._meeting_point.secret, self._settings.encrypts
            return Client(secret, Role.MEASURE, 0, incarnation=incarnation, encrypts=encrypts)

        rails = await find_rails(members, self._settings.servers, client, self._meeting_point.sources, self._deadlines)
        networks = await measure(self._links, rails, incarnation, one_too_many)
        if len(rails) == 1:
            welcome = welcome_of(members, self._settings, self._overrides, incarnation, networks[0])
        else:
            welcome = welcome_over_rails(members, self._settings, self._overrides, incarnation, networks, rails)
        limit = min(self._settings.timeout, self._deadlines.rendezvous)
        return await connect(self._links, welcome, networks, limit, one_too_many)

    async def _admit_own(self) -> None:
        message = await sockets.receive_message(self._own)
        self._links.put(Joining(0, self._own, message))

    async def _admit(self, link: socket.socket, proven: Callable[[], None]) -> None:
        rank, message = await self._first_message(link, proven)
        if self._farewell is not None:
            await self._farewell.say(rank, link)
        else:
            self._links.put(Joining(rank, link, message))

    async def _first_message(self, link: socket.socket, proven: Callable[[], None]) -> tuple[int, Message]:
        server = Server([self._meeting_point.secret], self._id, [Role.CONTROL], encrypts=self._settings.encrypts)
        caller = sockets.peer_name(link)
        try:
            hello = await asyncio.wait_for(sockets.authenticate_server(link, server), self._deadlines.stranger)
        except HandshakeRefused as error:
            if error.refusal in EXPLAINING and server.hello is not None and server.hello.role == Role.CONTROL:
                may_be_missing = self._gathering.note_unproven(server.hello.rank, error.refusal, caller)
                if may_be_missing and self._farewell is not None:
                    self._farewell.heard_by(server.hello.rank)
            raise
        proven()
        try:
            # One of ours: it may be stopped between two words.
            return hello.rank, await asyncio.wait_for(sockets.receive_message(link), self._deadlines.proven)
        except MessageError as error:
            self._links.put(ShoalError(f"rank {hello.rank} at {caller}: {error}"))
            raise

    def _has_no_descriptors(self, error: OSError) -> None:
        why = descriptors.say_gone(error)
        self._links.put(
            ConfigurationError(f"{self._name} cannot let the other ranks in: {why}; {descriptors.HOW_TO_RAISE}")
        )

    async def _go(self, shares_memory: bool) -> dict[int, socket.socket]:
        """If a rank dies now, the engine finds out, as at any later time."""
        go = messages.pack("go", {"inside": shares_memory})
        for member in self._links.members.values():
            await self._links.send(member, go)
        self._own.close()
        return {rank: member.link for rank, member in self._links.members.items() if rank != 0}

    async def _refuse(self, error: ShoalError, own: "asyncio.Task[None]") -> None:
        farewell = self._farewell = _Farewell(error, self._settings.size)
        await stop(own)
        await self._links.stop()
        everyone = self._everyone()
        await asyncio.gather(*(sockets.say_last_words(link, farewell.words) for _, link in everyone))
        for rank in [*self._gathering.unproven_ranks, *(rank for rank, _ in everyone)]:
            farewell.heard_by(rank)
        for event in self._links.rest():
            if isinstance(event, Joining):
                await farewell.say(event.rank, event.link)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(farewell.heard_by_all.wait(), self._deadlines.farewell)

    def _close(self) -> None:
        for _, link in self._everyone():
            link.close()
        self._own.close()

    def _everyone(self) -> list[tuple[int, socket.socket]]:
        members = self._links.members.values()
        return [*((member.rank, member.link) for member in members), *self._gathering.outsiders]


class _Farewell:
    """Why there will be no job, and which of the ``size`` ranks have heard it."""

    def __init__(self, error: ShoalError, size: int) -> None:
        self.words = messages.pack_refused(error)
        self.heard_by_all = asyncio.Event()
        self._everyone = set(range(size))
        self._heard: set[int] = set()

    async def say(self, rank: int, link: socket.socket) -> None:
        """To a rank that comes late."""
        await sockets.say_last_words(link, self.words)
        link.close()
        self.heard_by(rank)

    def heard_by(self, rank: int) -> None:
        self._heard.add(rank)
        if self._heard >= self._everyone:
            self.heard_by_all.set()
