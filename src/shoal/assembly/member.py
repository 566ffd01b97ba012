"""A rank's side of joining, on every rank: docs/protocol/lifecycle.md, Joining.

It reaches rank 0, says who it is, learns who else there is, connects to every server, and waits for ``go``. The result is
authenticated sockets, plain facts, and the memory that the ranks of a node share.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal import _native
from shoal.assembly import shared_memory
from shoal.assembly.further_controls import close_controls, connect_controls, expected_controls
from shoal.assembly.listen_address import OwnInterface, address_of_rank_zero, address_toward_others, own_interfaces
from shoal.assembly.listener import Listener
from shoal.assembly.measured_calls import follow_calls
from shoal.assembly.meeting_point import MeetingPoint
from shoal.assembly.rails import RailEnd, lanes_over
from shoal.assembly.rendezvous import Rendezvous
from shoal.assembly.server_links import ServerLinks
from shoal.assembly.terms import MOST_LANES, Welcome, parse_welcome, rank_on
from shoal.config.addresses import Address, is_unix
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError, PeerLost, ShoalError, Timeout
from shoal.net import descriptors, listening, messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role, refusal_error
from shoal.net.messages import Message, MessageError
from shoal.tuning import topology
from shoal.tuning.channels import MOST_CHANNELS
from shoal.tuning.limits import limits_for
from shoal.tuning.shares import server_places

_log = logging.getLogger("shoal")

# Its loop's epoll and eventfd, and the node's memory, whose descriptor the arena has once more.
_OF_THE_ENGINE = 4
# Each further channel's loop has an epoll and an eventfd, too.
_OF_A_CHANNEL = 2


@dataclass
class Joined:
    """A job that has come together, as one rank has it. The sockets wait to be handed to the engine.

    ``coordinators``: the control links to rank 0 by number (further_controls), none on rank 0; ``controls``: on rank 0, those
    of the others by number and rank; ``servers``: links to servers by index, without the one in this process. ``listener``
    holds the other ends; None for a job of one rank. ``memory``: what the ranks of this node share, if they do.
    """

    rank: int
    secret: bytes
    welcome: Welcome
    sources: list[str]
    listener: Listener | None = None
    coordinators: dict[int, socket.socket] = field(default_factory=dict)
    controls: dict[tuple[int, int], socket.socket] = field(default_factory=dict)
    servers: dict[int, socket.socket] = field(default_factory=dict)
    memory: "_native.SharedMemory | None" = None

    async def close(self) -> None:
        if self.listener is not None:
            await self.listener.close()
        for link in [*self.controls.values(), *self.servers.values(), *self.coordinators.values()]:
            link.close()


def join_alone(settings: Settings, overrides: Mapping[str, int]) -> Joined:
    """A job of one rank: its own server, and nobody to talk to. ``overrides``: of limits, by name."""
    host = socket.gethostname()
    places = tuple(server_places([host], settings.servers, settings.colocated))
    lanes = settings.sockets or 1
    limits = limits_for(None, lanes, overrides)
    welcome = Welcome(
        incarnation=os.urandom(16),
        hosts=(host,),
        addresses=(Address("127.0.0.1", 1),),
        leaders=(0,),
        servers=places,
        lanes=lanes,
        limits=limits,
        peer_timeout=settings.peer_timeout,
    )
    return Joined(0, b"", welcome, [])


async def join_job(
    settings: Settings,
    overrides: Mapping[str, int],
    shared: dict[str, str],
    meeting_point: MeetingPoint,
    deadlines: Deadlines,
) -> Joined:
    """Joins with the other ranks of a job of two or more.

    ``overrides``: limits that are not to be found by measuring. ``shared``: name → value of what must be equal everywhere.

    Raises ShoalError, the same kind on every rank, when something is wrong on any of them.
    """
    if not meeting_point.listeners:
        caller = Caller(settings, meeting_point, deadlines)
        control = await caller.reach_rank_zero()

        async def where() -> str:
            return address_toward_others(caller.meeting_point, control)

        return await _Member(settings, shared, caller.meeting_point, control, deadlines, where).join()
    ours, theirs = (sockets.watched(end) for end in socket.socketpair())
    rendezvous = Rendezvous(settings, overrides, shared, meeting_point, theirs, deadlines)

    async def where_met() -> str:
        return await address_of_rank_zero(meeting_point, rendezvous)

    return await _join_beside(rendezvous, _Member(settings, shared, meeting_point, ours, deadlines, where_met))


async def _join_beside(rendezvous: Rendezvous, member: "_Member") -> Joined:
    """Rank 0: its worker joins as every other does, through a pair of sockets instead of a connection."""
    coordinating = asyncio.create_task(rendezvous.run())
    try:
        joined = await member.join()
    except BaseException as error:
        if not isinstance(error, ShoalError):
            coordinating.cancel()
        # Until the other ranks have heard why; its own error is the same, or less than ours.
        (controls,) = await asyncio.gather(coordinating, return_exceptions=True)
        for link in controls.values() if isinstance(controls, dict) else ():
            link.close()
        if isinstance(controls, ShoalError) and isinstance(error, PeerLost) and error.rank == 0:
            raise controls from None  # it has ended before our worker could hear why
        raise
    joined.controls |= {(0, rank): link for rank, link in (await coordinating).items()}
    joined.coordinators.pop(0).close()
    return joined


class Caller:
    """Reaches rank 0 at the meeting place, however late it comes, and proves that this rank holds the secret.

    ``meeting_point``: the one that has led there. Where it came from the launcher's store, that is asked again whenever nobody is there.
    """

    def __init__(self, settings: Settings, meeting_point: MeetingPoint, deadlines: Deadlines) -> None:
        self._rank = settings.rank
        self._promise = settings.launch.promise
        self._limit = min(settings.timeout, deadlines.rendezvous)
        self.meeting_point = meeting_point
        self._encrypts = settings.encrypts
        self._deadlines = deadlines
        # Since when connections have only ended without a word, and whether the last one stayed without any.
        self._ended_since: float | None = None
        self._stays_silent = False

    async def reach_rank_zero(self) -> socket.socket:
        """The control link. Raises AuthenticationError, ConfigurationError (another program answers) and Timeout."""
        clock = asyncio.get_running_loop().time
        began, pause, next_report = clock(), 0.02, self._deadlines.late
        while True:
            tried = clock()
            address = self.meeting_point.address
            client = Client(self.meeting_point.secret, Role.CONTROL, self._rank, encrypts=self._encrypts)
            try:
                return await sockets.connect_as(client, address, self.meeting_point.sources, self._deadlines.call)
            except HandshakeRefused as error:
                if self._has_moved():
                    continue
                raise refusal_error(error, f"rank {self._rank} called rank 0 at {address}") from None
            except OSError as error:
                failure = error
            if self._has_moved():
                self._ended_since = None
                continue
            self._check_silence(failure, tried, clock())
            elapsed = clock() - began
            problem = (
                f"rank {self._rank} could not reach rank 0 at {address} for {elapsed:.0f} s ({sockets.why(failure)})"
            )
            if elapsed >= self._limit:
                raise Timeout(f"{problem}: {self._what_to_do()}")
            if elapsed >= next_report:
                _log.warning("%s; still trying: %s", problem, self._what_to_do())
                next_report *= 2
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 1.0)

    def _what_to_do(self) -> str:
        if self._stays_silent:
            return (
                "what listens there takes connections and does not answer: see whether rank 0 is stopped or busy, or whether another "
                "program has this port (set SHOAL_RENDEZVOUS or MASTER_PORT to a free one on every rank)"
            )
        promise = f"; {self._promise}" if self._promise else ""
        if is_unix(self.meeting_point.address.host):
            return (
                "see whether rank 0 runs, and has the same MASTER_ADDR and MASTER_PORT; if ranks of this machine run in containers "
                f"with networks of their own, set SHOAL_RENDEZVOUS=host:port{promise}"
            )
        return f"see whether rank 0 runs, and whether SHOAL_RENDEZVOUS or MASTER_ADDR name its machine{promise}"

    def _has_moved(self) -> bool:
        """Whether the store says something else by now: what it said before was from an earlier start."""
        if self.meeting_point.again is None:
            return False
        before, self.meeting_point = self.meeting_point, self.meeting_point.again()
        return (before.address, before.secret) != (self.meeting_point.address, self.meeting_point.secret)

    def _check_silence(self, failure: OSError, tried: float, now: float) -> None:
        """An earlier job's listener leaves a few connections behind that end without a word; a port that only ever does
        that belongs to another program. One that says nothing and keeps them may be rank 0 that is stopped, or busy."""
        self._stays_silent = any(isinstance(cause, sockets.Silent) for cause in sockets.causes(failure))
        if not sockets.says_nothing(failure):
            self._ended_since = None
            return
        self._ended_since = self._ended_since or tried
        if now - self._ended_since >= self._deadlines.silence:
            raise ConfigurationError(
                f"rank {self._rank}: what listens at {self.meeting_point.address} is not rank 0 of this job, since it does not answer: if "
                "another program has this port, set SHOAL_RENDEZVOUS or MASTER_PORT to a free one on every rank"
            )


class _Member:
    """One rank's way from a control link to ``go``."""

    def __init__(
        self,
        settings: Settings,
        shared: dict[str, str],
        meeting_point: MeetingPoint,
        control: socket.socket,
        deadlines: Deadlines,
        where: Callable[[], Awaitable[str]],
    ) -> None:
        self._settings = settings
        self._rank = settings.rank
        self._host = socket.gethostname()
        self._shared = shared
        self._meeting_point = meeting_point
        self._control = control
        self._deadlines = deadlines
        self._where = where
        self._servers = ServerLinks(settings, meeting_point, deadlines)
        # One for each network of SHOAL_INTERFACE.
        self._interfaces: list[OwnInterface] = []
        # Further control links, by number.
        self._controls: dict[int, socket.socket] = {}
        self._giver: shared_memory.Giver | None = None

    async def join(self) -> Joined:
        try:
            listener = await self._open_listener()
        except BaseException as error:
            await self._say_why(error)
            raise
        try:
            return await self._join_with(listener)
        except BaseException as error:
            await self._say_why(error)
            await listener.close()
            self._servers.close()
            close_controls(self._controls)
            raise
        finally:
            if self._giver is not None:
                await self._giver.close()

    async def _open_listener(self) -> Listener:
        settings = self._settings
        self._interfaces = own_interfaces(self._meeting_point, await self._where(), settings.launch.one_machine)
        bound: list[socket.socket] = []
        try:
            for _, host, _ in self._interfaces:
                bound.append(listening.listen_in_range(host, settings.port_range, settings.launch.master_port))
        except BaseException:
            listening.close_all(bound)
            raise
        return Listener(
            bound, self._meeting_point.secret, self._rank, self._deadlines, encrypts=self._settings.encrypts
        )

    async def _join_with(self, listener: Listener) -> Joined:
        await self._tell(messages.pack("join", self._introduction(listener.addresses)))
        # Rank 0 gives up first, and says why.
        limit = min(self._settings.timeout, self._deadlines.rendezvous) + 2 * self._deadlines.answer
        message = await self._hear(limit, "measure", "welcome")
        if message.kind == "measure":
            message = await self._measure(message, listener, limit)
        welcome = parse_welcome(message, self._settings.size)
        self._provide_descriptors(welcome)
        failure = listener.welcome(welcome)
        hearing = asyncio.create_task(self._hear(limit, "go"))
        connecting = asyncio.create_task(self._connect(welcome))
        try:
            await _first_of(failure, hearing, connecting)
            if hearing.done():
                raise hearing.exception() or MessageError(f"rank 0 said 'go' before rank {self._rank} was connected")
            memory = await connecting
            connected = {"server_ids": self._servers.ids(welcome, listener.server_id), "inside": memory is not None}
            await self._tell(messages.pack("connected", connected))
            await _first_of(failure, hearing)
            go = await hearing
        finally:
            await _end(hearing, connecting)
        await listener.wait_for_workers(self._expected_workers(welcome))
        await listener.wait_for_controls(expected_controls(welcome, self._rank))
        return Joined(
            self._rank,
            self._meeting_point.secret,
            welcome,
            self._meeting_point.sources,
            listener,
            coordinators={0: self._control, **self._controls},
            controls=dict(listener.controls),
            servers=self._servers.links,
            memory=memory if go.flag("inside") else None,
        )

    def _provide_descriptors(self, welcome: Welcome) -> None:
        """What this rank opens from here on: at once, and when all-gather or all-to-all first connect two ranks."""
        others, lanes = len(welcome.hosts) - 1, welcome.lanes
        own = welcome.is_linked(welcome.servers[self._rank])
        linked = sum(welcome.is_linked(server) for server in welcome.servers) - own
        node = welcome.node_of(self._rank)
        needed = {
            "connections to servers": linked * lanes,
            "connections of other ranks to the server in this one": others * lanes if own else 0,
            "its engine": _OF_THE_ENGINE + _OF_A_CHANNEL * (welcome.channels - 1),
            "further control links": (welcome.controls - 1) * (1 if self._rank else others),
            "handing memory to ranks of its machine": len(node) if node[0] == self._rank and len(node) > 1 else 0,
        }
        descriptors.provide(
            rank_on(self._rank, self._host),
            needed,
            {"connections for all-gather and all-to-all": others},
            opened=others if self._rank == 0 else 1,
            advice=", or set SHOAL_SOCKETS to fewer connections per pair" if lanes > 1 else "",
        )

    def _introduction(self, addresses: list[Address]) -> dict[str, Any]:
        ends = [
            RailEnd(one.name, address, one.prefix) for one, address in zip(self._interfaces, addresses, strict=True)
        ]
        return {
            "rank": self._rank,
            "size": self._settings.size,
            "host": self._host,
            "address": addresses[0],
            "rails": [end.as_fields() for end in ends] if len(ends) > 1 else [],
            "machine": topology.machine(),
            "local_rank": self._settings.local_rank,
            "threads": self._settings.threads or 0,
            "processors": topology.processors(self._settings.local_size),
            "settings": self._shared,
        }

    async def _measure(self, message: Message, listener: Listener, limit: float) -> Message:
        """Lets others measure the link of this host, and calls whom rank 0 names. Its ``welcome``."""
        incarnation = message.identity("incarnation")
        networks = len(self._interfaces)
        lanes = lanes_over(networks, self._settings.sockets or MOST_CHANNELS * networks, MOST_LANES)
        listener.open(incarnation, self._settings.size * (lanes + 1))

        def client() -> Client:
            return Client(
                self._meeting_point.secret,
                Role.MEASURE,
                self._rank,
                incarnation=incarnation,
                encrypts=self._settings.encrypts,
            )

        async def hear(*kinds: str) -> Message:
            return await self._hear(limit, *kinds)

        return await follow_calls(hear, self._tell, client, self._meeting_point.sources)

    async def _connect(self, welcome: Welcome) -> "_native.SharedMemory | None":
        memory = await self._share_memory(welcome)
        await self._servers.connect(welcome)
        self._controls = await connect_controls(welcome, self._settings, self._meeting_point, self._deadlines)
        return memory

    async def _share_memory(self, welcome: Welcome) -> "_native.SharedMemory | None":
        """What the ranks of this node share, also where it has only this one, but others have more. None if they do not."""
        if not welcome.shares_memory:
            return None
        try:
            node = shared_memory.Node.of(self._rank, welcome, self._meeting_point.secret, self._deadlines)
            if not node.leads:
                return await shared_memory.receive(node)
            self._giver = shared_memory.Giver(node)
            return self._giver.memory
        except OSError as error:
            _say_without_memory(self._rank, error)
            return None

    def _expected_workers(self, welcome: Welcome) -> list[tuple[int, int]]:
        if not welcome.is_linked(welcome.servers[self._rank]):
            return []
        first = self._rank * welcome.lanes
        others = [rank for rank in range(len(welcome.hosts)) if rank != self._rank]
        return [(index, rank) for index in range(first, first + welcome.lanes) for rank in others]

    # --- The control link ---

    async def _tell(self, data: bytes) -> None:
        try:
            await asyncio.wait_for(sockets.send(self._control, data), self._deadlines.answer)
        except (OSError, asyncio.TimeoutError):
            # Rank 0 is gone or has refused the job: what it said last is still to be read.
            await self._hear(self._deadlines.answer, "refused")

    async def _hear(self, limit: float, *kinds: str) -> Message:
        """The next message of rank 0, which must be one of these. Raises what rank 0 refused the job for."""
        try:
            message = await asyncio.wait_for(sockets.receive_message(self._control), limit)
        except asyncio.TimeoutError:
            raise Timeout(
                f"rank {self._rank} has heard nothing from rank 0 at {self._meeting_point.address} for {limit:.0f} s"
            ) from None
        except OSError as error:
            raise PeerLost(
                f"rank {self._rank}: rank 0 at {self._meeting_point.address} is gone before the job began "
                f"({sockets.why(error)}): see its output for the reason",
                0,
            ) from None
        if message.kind == "refused":
            raise messages.error_of(message)
        if message.kind not in kinds:
            expected = " or ".join(f"'{kind}'" for kind in kinds)
            raise MessageError(f"rank 0 said '{message.kind}' where rank {self._rank} expected {expected}")
        return message

    async def _say_why(self, error: BaseException) -> None:
        """The others hear of an error from the coordinator, unless it came from there."""
        if isinstance(error, ShoalError):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(sockets.send(self._control, messages.pack_refused(error)), 1.0)
        self._control.close()


def _say_without_memory(rank: int, error: OSError) -> None:
    _log.warning(
        "rank %d shares no memory with the other ranks of its machine (%s): they average over the network's loopback, which "
        "is slower",
        rank,
        sockets.why(error),
    )


async def _first_of(failure: "asyncio.Future[None]", *tasks: "asyncio.Task[Any]") -> None:
    """Until one of the tasks is done. Raises what ``failure`` fails with, if that comes first."""
    futures: list[asyncio.Future[Any]] = [failure, *tasks]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    if failure.done():
        failure.result()


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
