"""Rank 0's control links while a job comes together: what the ranks say, and who is late.

Every event goes into one queue: a caller with its first message, a message of a rank that has joined, the end of its link,
a problem of rank 0's own. The phases of the rendezvous take them one after the other.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass

from shoal.assembly.rails import RailEnd
from shoal.assembly.terms import rank_on
from shoal.config.addresses import Address
from shoal.errors import PeerLost, ShoalError, Timeout
from shoal.net import messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.messages import Message, MessageError
from shoal.tuning.channels import Threads

_log = logging.getLogger("shoal")

# What the ranks say while links are measured. It may come late, from a measurement that was given up.
PREPARED, MEASURED = "prepared", "measured"

# Of one job's measurements, on all of its networks. Each has a number, so that what comes late is known as such.
MOST_ROUNDS = 2**32 - 1

SEE_WHETHER = "see whether they run, and whether they can reach that address"


@dataclass
class Member:
    """A rank that has joined."""

    rank: int
    host: str
    address: Address
    # Which machine, and its place there.
    machine: str
    local_rank: int
    threads: Threads
    # Where it listens on each network of SHOAL_INTERFACE; () where that names one, or none.
    rails: tuple[RailEnd, ...]
    link: socket.socket

    def __str__(self) -> str:
        return rank_on(self.rank, self.host)


@dataclass
class Joining:
    """A connection that has proven itself, with its first message."""

    rank: int
    link: socket.socket
    message: Message


@dataclass
class Said:
    """What a member said, or how its connection ended."""

    member: Member
    message: Message | ShoalError


@dataclass
class Quiet:
    """``Deadlines.unproven`` seconds have passed since so many had joined, and so many numbers of missing ranks were
    used without a proof. If it still is as many, nothing has happened since."""

    joined: int
    unproven: int


Event = Joining | Said | Quiet | ShoalError


class GaveUp(Timeout):
    """Somebody did not come or answer in time."""


class ControlLinks:
    """``members``: the ranks that have joined, by rank. Every one of them is listened to until ``stop``."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.members: dict[int, Member] = {}
        self._deadlines = deadlines
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._readers: list[asyncio.Task[None]] = []

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    def put_later(self, seconds: float, event: Event) -> None:
        asyncio.get_running_loop().call_later(seconds, self.put, event)

    def rest(self) -> list[Event]:
        """The events that nobody has taken."""
        rest = []
        while not self._events.empty():
            rest.append(self._events.get_nowait())
        return rest

    def clock(self, limit: float, what_to_do: Callable[[], str] = lambda: SEE_WHETHER) -> "Clock":
        return Clock(self._events, self._deadlines.late, limit, what_to_do)

    def add(self, member: Member) -> None:
        self.members[member.rank] = member
        self._readers.append(asyncio.create_task(self._listen_to(member)))

    def in_order(self) -> list[Member]:
        """All of them, once every rank has joined."""
        return [self.members[rank] for rank in range(len(self.members))]

    async def send(self, member: Member, data: bytes) -> None:
        """A connection that cannot be written to is reported by whoever reads from it."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(sockets.send(member.link, data), self._deadlines.answer)

    async def hear_all(
        self,
        kind: str,
        ranks: Collection[int],
        limit: float,
        what: str,
        one_too_many: Callable[[Joining], object],
        of_round: int | None = None,
    ) -> dict[int, Message]:
        """This message of each of these ranks, of this round of measuring if that is said.

        ``one_too_many``: raises for a rank that joins when all are there. Raises GaveUp after ``limit`` seconds; the
        error that ends the job.
        """
        heard: dict[int, Message] = {}
        clock = self.clock(limit)

        def waiting_for() -> str:
            return f"{list_of([rank for rank in ranks if rank not in heard])} {what}"

        while len(heard) < len(ranks):
            event = await clock.next(waiting_for)
            if isinstance(event, Joining):
                one_too_many(event)
            elif isinstance(event, Said) and isinstance(event.message, Message) and _is(event.message, kind, of_round):
                heard[event.member.rank] = event.message
            elif not isinstance(event, Quiet) and not _is_late(event):
                raise failure_of(event)
        return heard

    async def stop(self) -> None:
        """Listens to nobody any more."""
        await stop(*self._readers)

    async def _listen_to(self, member: Member) -> None:
        """What a member says from now on, in order, until its connection ends."""
        try:
            while True:
                self.put(Said(member, await sockets.receive_message(member.link)))
        except MessageError as error:
            self.put(Said(member, ShoalError(f"{member}: {error}")))
        except OSError as error:
            lost = PeerLost(
                f"{member} is gone before the job began ({sockets.why(error)}): see its own output for the reason",
                member.rank,
                member.host,
            )
            self.put(Said(member, lost))


class Clock:
    """Waits for events, warns at doubling intervals who is late, and gives up at the limit."""

    def __init__(
        self, events: "asyncio.Queue[Event]", next_report: float, limit: float, what_to_do: Callable[[], str]
    ) -> None:
        self._events = events
        self._what_to_do = what_to_do
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._limit = limit
        self._next_report = next_report

    async def next(self, waiting_for: Callable[[], str]) -> Event:
        while True:
            elapsed = self._now() - self._began
            if elapsed >= self._limit:
                raise GaveUp(f"after {elapsed:.0f} s rank 0 still waits for {waiting_for()}: {self._what_to_do()}")
            if elapsed >= self._next_report:
                _log.warning("rank 0 has waited %.0f s for %s: %s", elapsed, waiting_for(), self._what_to_do())
                self._next_report *= 2
            try:
                return await asyncio.wait_for(self._events.get(), min(self._next_report, self._limit) - elapsed)
            except asyncio.TimeoutError:
                continue


def failure_of(event: Joining | Said | ShoalError) -> ShoalError:
    """The error that an event other than the one waited for stands for."""
    if isinstance(event, ShoalError):
        return event
    if isinstance(event, Joining):
        return ShoalError(f"rank {event.rank} joined when all ranks were there already")
    if isinstance(event.message, ShoalError):
        return event.message
    if event.message.kind == "refused":
        return messages.error_of(event.message)
    return ShoalError(f"{event.member} said '{event.message.kind}', which is not its turn: install the same version")


def list_of(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:16])
    more = f" and {len(ranks) - 16} more" if len(ranks) > 16 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


async def stop(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is(message: Message, kind: str, of_round: int | None) -> bool:
    return message.kind == kind and (of_round is None or message.integer("round", 0, MOST_ROUNDS) == of_round)


def _is_late(event: Event) -> bool:
    """Whether this is from a measurement that was given up."""
    return isinstance(event, Said) and isinstance(event.message, Message) and event.message.kind in (PREPARED, MEASURED)
