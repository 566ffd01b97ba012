"""The coordinator's side of joining, on rank 0: docs/protocol.md, section 3, control link.

Waits until every rank has joined with equal settings, has all links measured, tells all who is in the job and who averages
how much, waits until all are connected, and says ``go``. Whatever is wrong with one rank ends the attempt for all, and all hear why; ranks that come later than that
still hear it for a moment. Strangers are dropped and cost nothing more; those who say that they are a rank that is missing are
remembered, as what may explain it (unproven_callers).
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

from shoal.config.addresses import Address
from shoal.config.launchers import MOST_RANKS
from shoal.config.settings import Settings
from shoal.errors import (
    ConfigurationError,
    PeerLost,
    ShoalError,
    Timeout,
    error_from_name,
    name_of,
)
from shoal.join.meeting_point import MeetingPoint
from shoal.join.terms import Welcome
from shoal.join.unproven_callers import EXPLAINING, UnprovenCallers
from shoal.net import descriptors, listening, messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import HandshakeRefused, Refusal, Role, Server
from shoal.net.messages import Message, MessageError
from shoal.net.rejections import Rejections
from shoal.tuning.limits import limits_for
from shoal.tuning.measured import Network
from shoal.tuning.probe import ProbeResult
from shoal.tuning.probe_schedule import ProbeSchedule, Round
from shoal.tuning.shares import rate_of, server_places
from shoal.tuning.topology import by_node, leaders_of

_log = logging.getLogger("shoal")

# Strangers that are looked at beside the job's own ranks.
_STRANGERS = 64

# Seconds for all ranks to connect for measuring, or to measure once: several times what it takes.
_MEASURING = 5.0
_OF_MEASURING = ("prepared", "measured")

_SEE_WHETHER = "see whether they run, and whether they can reach that address"


@dataclass
class Member:
    """A rank that has joined."""

    rank: int
    host: str
    address: Address
    # Which machine, and its place there.
    machine: str
    local_rank: int
    link: socket.socket

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host})"


@dataclass
class _Joining:
    """A connection that has proven itself, with its first message."""

    rank: int
    link: socket.socket
    message: Message


@dataclass
class _Said:
    """What a member said, or how its connection ended."""

    member: Member
    message: Message | ShoalError


@dataclass
class _Quiet:
    """``Deadlines.unproven`` seconds have passed since so many had joined, and so many numbers of missing ranks were used without a
    proof. If it still is as many, nothing has happened since."""

    joined: int
    unproven: int


_Event = _Joining | _Said | _Quiet | ShoalError


class Rendezvous:
    """One attempt to bring a job together.

    ``meeting_point``: with listeners, which are closed when this is over. ``own``: one end of a pair of sockets, whose other end
    rank 0's own node uses as every other node uses its control link. ``overrides``: limits that are not to be found by
    measuring. ``shared``: what must be equal everywhere.
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
        self._shared = shared
        self._meeting_point = meeting_point
        self._own = own
        self._deadlines = deadlines
        self._rejections = Rejections("rank 0")
        self._unproven = UnprovenCallers(settings.tls)
        self._name = f"rank 0 (host {socket.gethostname()})"
        self._id = os.urandom(16)
        self._incarnation = os.urandom(16)
        self._members: dict[int, Member] = {}
        # Those that proved themselves but do not fit: they hear the refusal like the members do.
        self._outsiders: list[tuple[int, socket.socket]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._refusal: ShoalError | None = None
        # Whether all ranks share memory.
        self._inside = False
        self._told: set[int] = set()
        self._all_told = asyncio.Event()
        self._reached: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    async def reached_at(self) -> list[str]:
        """This machine's addresses at which the other ranks have reached it, by rank, once all of them have joined.

        Raises what went wrong before.
        """
        return await asyncio.shield(self._reached)

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
        self._readers.append(asyncio.create_task(self._admit_own()))
        complete = False
        try:
            descriptors.provide(self._name, {"control connections of the other ranks": self._settings.size - 1}, {})
            await self._gather()
            await self._connect(await self._measure())
            complete = True
        except ShoalError as error:
            if not self._reached.done():
                self._reached.set_exception(error)
                self._reached.exception()  # it is raised below, whether anyone waits for it here or not
            await self._refuse(error)
            raise
        finally:
            await _stop(accepting, *self._readers)
            if not complete:
                self._close()
        return await self._go()

    # --- Connections ---

    async def _admit_own(self) -> None:
        message = await sockets.receive_message(self._own)
        self._events.put_nowait(_Joining(0, self._own, message))

    async def _admit(self, link: socket.socket, proven: Callable[[], None]) -> None:
        rank, message = await self._first_message(link, proven)
        if self._refusal is not None:
            await self._tell_late(rank, link)
        else:
            self._events.put_nowait(_Joining(rank, link, message))

    async def _first_message(self, link: socket.socket, proven: Callable[[], None]) -> tuple[int, Message]:
        server = Server([self._meeting_point.secret], self._id, [Role.CONTROL], encrypts=self._settings.encrypts)
        caller = sockets.peer_name(link)
        try:
            hello = await asyncio.wait_for(sockets.authenticate_server(link, server), self._deadlines.stranger)
        except HandshakeRefused as error:
            if error.refusal in EXPLAINING and server.hello is not None and server.hello.role == Role.CONTROL:
                self._note_unproven(server.hello.rank, error.refusal, caller)
            raise
        proven()
        try:
            # One of ours: it may be stopped between two words.
            return hello.rank, await asyncio.wait_for(sockets.receive_message(link), self._deadlines.proven)
        except MessageError as error:
            self._events.put_nowait(ShoalError(f"rank {hello.rank} at {caller}: {error}"))
            raise

    def _has_no_descriptors(self, error: OSError) -> None:
        why = descriptors.say_gone(error)
        self._events.put_nowait(
            ConfigurationError(f"{self._name} cannot let the other ranks in: {why}; {descriptors.HOW_TO_RAISE}")
        )

    def _note_unproven(self, rank: int, refusal: Refusal, caller: str) -> None:
        """Somebody says that it is this rank, without a proof: of interest only while that rank is missing."""
        if rank >= self._settings.size or rank in self._members:
            return
        known = len(self._unproven.ranks())
        self._unproven.note(rank, refusal, caller)
        if self._refusal is not None:
            self._tell(rank)
        elif len(self._unproven.ranks()) > known:
            self._await_quiet()

    def _await_quiet(self) -> None:
        quiet = _Quiet(len(self._members), len(self._unproven.ranks()))
        asyncio.get_running_loop().call_later(self._deadlines.unproven, self._events.put_nowait, quiet)

    async def _listen_to(self, member: Member) -> None:
        """What a member says from now on, in order, until its connection ends."""
        try:
            while True:
                self._events.put_nowait(_Said(member, await sockets.receive_message(member.link)))
        except MessageError as error:
            self._events.put_nowait(_Said(member, ShoalError(f"{member}: {error}")))
        except OSError as error:
            lost = PeerLost(
                f"{member} is gone before the job began ({sockets.why(error)}): see its own output for the reason",
                member.rank,
                member.host,
            )
            self._events.put_nowait(_Said(member, lost))

    # --- Bringing them together ---

    async def _gather(self) -> None:
        clock = _Clock(self._deadlines, self._time_limit(), self._what_to_do)
        while len(self._members) < self._settings.size:
            try:
                event = await clock.next(self._events, self._who_is_missing)
            except _GaveUp as gave_up:
                raise self._explanation() or gave_up from None
            if isinstance(event, _Joining):
                self._add(self._checked(event))
            elif isinstance(event, _Quiet):
                self._reconsider(event)
            else:
                raise _failure(event)

    def _reconsider(self, quiet: _Quiet) -> None:
        """Raises the explanation, if nobody has come for a while and each rank that is missing has one."""
        unproven = self._unproven.ranks()
        unchanged = quiet == _Quiet(len(self._members), len(unproven))
        if unchanged and unproven.issuperset(self._missing()) and (explanation := self._explanation()) is not None:
            raise explanation

    def _explanation(self) -> ShoalError | None:
        missing = self._missing()
        return self._unproven.explanation(missing, f"{_list_of(missing)} did not join")

    def _missing(self) -> list[int]:
        """Rank 0 itself may wait for the others first."""
        return [rank for rank in range(1, self._settings.size) if rank not in self._members] or [0]

    def _time_limit(self) -> float:
        return min(self._settings.timeout, self._deadlines.rendezvous)

    def _who_is_missing(self) -> str:
        return f"{_list_of(self._missing())} of {self._settings.size} to join at {self._meeting_point.listens_at}"

    def _what_to_do(self) -> str:
        """Whoever has met one of the others knows that they are more than a promise."""
        promise = "" if set(self._members) - {0} else self._settings.launch.promise
        return f"{_SEE_WHETHER}; {promise}" if promise else _SEE_WHETHER

    def _add(self, member: Member) -> None:
        self._members[member.rank] = member
        if len(self._members) - (0 in self._members) == self._settings.size - 1 and not self._reached.done():
            others = sorted(rank for rank in self._members if rank != 0)
            self._reached.set_result([sockets.local_address(self._members[rank].link).host for rank in others])
        self._readers.append(asyncio.create_task(self._listen_to(member)))
        if self._unproven.ranks():
            self._await_quiet()

    def _checked(self, joining: _Joining) -> Member:
        member = self._parsed(joining)
        size = self._settings.size
        claimed = joining.message.integer("size", 1, MOST_RANKS)
        if claimed != size:
            self._refuse_member(member, f"{member} says that the job has {claimed} ranks, rank 0 that it has {size}")
        if member.rank >= size:
            self._refuse_member(member, f"{member} does not fit into a job of {size} ranks: check RANK")
        other = self._members.get(member.rank)
        if other is not None:
            self._refuse_member(
                member,
                f"two processes joined as rank {member.rank}: one on host {other.host}, one on host {member.host}: "
                "check RANK, and whether another job uses the same rendezvous (SHOAL_RENDEZVOUS)",
            )
        self._compare(member, joining.message.text_map("settings"))
        return member

    def _parsed(self, joining: _Joining) -> Member:
        message = joining.message
        try:
            if message.kind == "refused":
                refusal = _refusal_before_joining(joining)
                self._outsiders.append((joining.rank, joining.link))
                raise refusal
            if message.kind != "join" or message.integer("rank", 0, MOST_RANKS) != joining.rank:
                raise MessageError(f"the message '{message.kind}' is not the 'join' of that rank")
            message.integer("size", 1, MOST_RANKS)
            message.text_map("settings")
            return Member(
                joining.rank,
                message.text("host"),
                Address(*message.address("address")),
                message.text("machine"),
                message.integer("local_rank", 0, MOST_RANKS),
                joining.link,
            )
        except MessageError as error:
            self._outsiders.append((joining.rank, joining.link))
            raise ShoalError(f"rank {joining.rank} at {sockets.peer_name(joining.link)}: {error}") from None

    def _refuse_member(self, member: Member, why: str) -> NoReturn:
        self._outsiders.append((member.rank, member.link))
        raise ConfigurationError(why)

    def _compare(self, member: Member, theirs: dict[str, str]) -> None:
        for name in sorted({*self._shared, *theirs}):
            ours, other = self._shared.get(name, "unknown"), theirs.get(name, "unknown")
            if ours != other:
                zero = "rank 0" if 0 not in self._members else str(self._members[0])
                self._refuse_member(
                    member,
                    f"{name} differs: {ours} on {zero}, {other} on {member}; it must be the same on every rank",
                )

    async def _measure(self) -> Network | None:
        """All ranks are here: measures their links. What goes wrong in that is a warning, and joining goes on."""
        members = self._in_order()
        schedule = ProbeSchedule([member.address for member in members], self._settings.servers)
        rounds = schedule.first_rounds()
        if not rounds:
            return None
        for member in members:
            await self._send(member, messages.pack("measure", {"incarnation": self._incarnation.hex()}))
        try:
            for pairs in rounds:
                await self._measure_round(schedule, pairs)
            for pairs in schedule.second_look():
                await self._measure_round(schedule, pairs)
        except _GaveUp as error:
            _log.warning("not all links were measured: %s", error)
        if unknown := schedule.unknown():
            _log.warning("links that could not be measured count as like most others: %s", ", ".join(unknown))
        return schedule.network()

    async def _measure_round(self, schedule: ProbeSchedule, pairs: Round) -> None:
        """All callers begin together, once all are connected."""
        callers = [pair.rank for pair in pairs]
        for pair in pairs:
            call = {"address": pair.called.address, "both": pair.both}
            await self._send(self._members[pair.rank], messages.pack("call", call))
        await self._hear_all("prepared", callers, _MEASURING, "to connect for measuring")
        begin = messages.pack("begin", {})
        for rank in callers:
            await self._send(self._members[rank], begin)
        found = await self._hear_all("measured", callers, _MEASURING, "to measure a link")
        for pair in pairs:
            schedule.note(pair, ProbeResult.parse(found[pair.rank]))

    def _in_order(self) -> list[Member]:
        return [self._members[rank] for rank in range(self._settings.size)]

    async def _connect(self, network: Network | None) -> None:
        """Says who is in the job and who averages how much, and waits until all are connected to the servers."""
        members = self._in_order()
        welcome = self._welcome(members, network)
        packed = messages.pack("welcome", welcome.as_fields())
        for member in members:
            await self._send(member, packed)
        _say_what_was_found(welcome)
        everyone, limit = range(len(members)), self._time_limit()
        heard = await self._hear_all("connected", everyone, limit, "to connect to the servers")
        ids = [heard[rank].texts("server_ids", count=len(welcome.servers)) for rank in everyone]
        _compare_ids(ids, members, welcome)
        self._inside = all(heard[rank].flag("inside") for rank in everyone)

    async def _hear_all(self, kind: str, ranks: Collection[int], limit: float, what: str) -> dict[int, Message]:
        """This message of each of these ranks. Raises _GaveUp after ``limit`` seconds; the error that ends the job."""
        heard: dict[int, Message] = {}
        clock = _Clock(self._deadlines, limit)

        def waiting_for() -> str:
            return f"{_list_of([rank for rank in ranks if rank not in heard])} {what}"

        while len(heard) < len(ranks):
            event = await clock.next(self._events, waiting_for)
            if isinstance(event, _Joining):
                self._checked(event)  # a rank too many: there is none that fits
            elif isinstance(event, _Said) and isinstance(event.message, Message) and event.message.kind == kind:
                heard[event.member.rank] = event.message
            elif not isinstance(event, _Quiet) and not _is_late(event):
                raise _failure(event)
        return heard

    def _welcome(self, members: list[Member], network: Network | None) -> Welcome:
        hosts = [member.host for member in members]
        leaders = self._leaders(members)
        nodes = by_node(network, leaders)
        servers = server_places(hosts, self._settings.servers, self._settings.colocated, nodes, leaders)
        averaging = [servers[rank] for rank in [*sorted(set(leaders)), *range(len(hosts), len(servers))]]
        return Welcome(
            incarnation=self._incarnation,
            hosts=tuple(hosts),
            addresses=tuple(member.address for member in members),
            servers=tuple(servers),
            lanes=self._settings.lanes,
            limits=limits_for(nodes, len(set(leaders)) * self._settings.lanes, self._overrides),
            peer_timeout=self._settings.peer_timeout,
            algorithm=self._settings.algorithm,
            network=network,
            rate=0 if nodes is None or "credit" in self._overrides else round(rate_of(averaging, nodes)),
            leaders=leaders,
            standby=self._settings.colocated != "never" and all(server.weight == 0 for server in servers[: len(hosts)]),
        )

    def _leaders(self, members: list[Member]) -> tuple[int, ...]:
        if self._settings.algorithm != "server":
            return tuple(range(len(members)))
        return leaders_of([(member.machine, member.local_rank) for member in members])

    async def _send(self, member: Member, data: bytes) -> None:
        """A connection that cannot be written to is reported by whoever reads from it."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(sockets.send(member.link, data), self._deadlines.answer)

    async def _go(self) -> dict[int, socket.socket]:
        """A node that dies now is found by the engine, as at any later time."""
        go = messages.pack("go", {"inside": self._inside})
        for member in self._members.values():
            await self._send(member, go)
        self._own.close()
        return {rank: member.link for rank, member in self._members.items() if rank != 0}

    # --- Refusing ---

    async def _refuse(self, error: ShoalError) -> None:
        self._refusal = error
        await _stop(*self._readers)
        packed = messages.pack_refused(error)
        everyone = self._everyone()
        await asyncio.gather(*(sockets.say_last_words(link, packed) for _, link in everyone))
        for rank in [*self._unproven.ranks(), *(rank for rank, _ in everyone)]:
            self._tell(rank)
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, _Joining):
                await self._tell_late(event.rank, event.link)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_told.wait(), self._deadlines.farewell)

    async def _tell_late(self, rank: int, link: socket.socket) -> None:
        assert self._refusal is not None, "there is something to tell"
        await sockets.say_last_words(link, messages.pack_refused(self._refusal))
        link.close()
        self._tell(rank)

    def _tell(self, rank: int) -> None:
        self._told.add(rank)
        if self._told >= set(range(self._settings.size)):
            self._all_told.set()

    def _close(self) -> None:
        for _, link in self._everyone():
            link.close()
        self._own.close()

    def _everyone(self) -> list[tuple[int, socket.socket]]:
        return [*((member.rank, member.link) for member in self._members.values()), *self._outsiders]


class _GaveUp(Timeout):
    """Somebody did not come or answer in time."""


class _Clock:
    """Waits for events, warns at doubling intervals who is late, and gives up at the limit."""

    def __init__(
        self, deadlines: Deadlines, limit: float, what_to_do: Callable[[], str] = lambda: _SEE_WHETHER
    ) -> None:
        self._what_to_do = what_to_do
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._limit = limit
        self._next_report = deadlines.late

    async def next(self, events: "asyncio.Queue[_Event]", waiting_for: Callable[[], str]) -> _Event:
        while True:
            elapsed = self._now() - self._began
            if elapsed >= self._limit:
                raise _GaveUp(f"after {elapsed:.0f} s rank 0 still waits for {waiting_for()}: {self._what_to_do()}")
            if elapsed >= self._next_report:
                _log.warning("rank 0 has waited %.0f s for %s: %s", elapsed, waiting_for(), self._what_to_do())
                self._next_report *= 2
            try:
                return await asyncio.wait_for(events.get(), min(self._next_report, self._limit) - elapsed)
            except asyncio.TimeoutError:
                continue


def _is_late(event: _Event) -> bool:
    """Whether this is from a measurement that was given up."""
    return isinstance(event, _Said) and isinstance(event.message, Message) and event.message.kind in _OF_MEASURING


def _failure(event: _Joining | _Said | ShoalError) -> ShoalError:
    """The error that an event other than the one waited for stands for."""
    if isinstance(event, ShoalError):
        return event
    if isinstance(event, _Joining):
        return ShoalError(f"rank {event.rank} joined when all ranks were there already")
    if isinstance(event.message, ShoalError):
        return event.message
    if event.message.kind == "refused":
        return messages.error_of(event.message)
    return ShoalError(f"{event.member} said '{event.message.kind}', which is not its turn: install the same version")


def _refusal_before_joining(joining: _Joining) -> ShoalError:
    """What went wrong on a rank that had reached rank 0, but could not join."""
    error = messages.error_of(joining.message)
    return error_from_name(
        name_of(error), f"rank {joining.rank} at {sockets.peer_name(joining.link)} could not join: {error}"
    )


def _compare_ids(ids: list[list[str]], members: list[Member], welcome: Welcome) -> None:
    """All ranks must have met the same server under each address, and no server twice. "" is a server not asked."""
    first_met: dict[str, int] = {}
    for index, server in enumerate(welcome.servers):
        met = {found[index]: member for member, found in zip(members, ids, strict=True) if found[index]}
        if len(met) > 1:
            one, other = list(met.values())[:2]
            raise ConfigurationError(
                f"{one} and {other} reach different servers as {server}: give it a name or address that means the same "
                "everywhere in SHOAL_SERVERS"
            )
        for identity in met:
            if identity in first_met:
                raise ConfigurationError(
                    f"{welcome.servers[first_met[identity]]} and {server} are the same server: name it once in SHOAL_SERVERS"
                )
            first_met[identity] = index


def _say_what_was_found(welcome: Welcome) -> None:
    if welcome.network is None:
        return
    nodes = [f"rank {rank} (host {host})" for rank, host in enumerate(welcome.hosts)]
    servers = [str(server.address) for server in welcome.servers if server.address is not None]
    _log.info(
        "links: %s; round trip %.0f us; segment %d, credit %d bytes; weights %s",
        welcome.network.describe(nodes, servers),
        1e6 * welcome.network.round_trip,
        welcome.limits.segment,
        welcome.limits.credit,
        " ".join(str(server.weight) for server in welcome.servers),
    )


def _list_of(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:16])
    more = f" and {len(ranks) - 16} more" if len(ranks) > 16 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


async def _stop(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
