"""The first phase of the rendezvous: until every rank has joined, with settings that are equal.

Anything wrong with a rank is an error. A caller that has used the number of a missing rank without a proof is remembered:
it may explain why that rank is missing (unproven_callers).
"""

import asyncio
import socket
from typing import NoReturn

from shoal.assembly.control_links import SEE_WHETHER, ControlLinks, GaveUp, Joining, Member, Quiet, failure_of, list_of
from shoal.assembly.meeting_point import MeetingPoint
from shoal.assembly.rails import parse_ends
from shoal.assembly.terms import MOST_LANES
from shoal.assembly.unproven_callers import UnprovenCallers
from shoal.config.addresses import Address
from shoal.config.launchers import MOST_RANKS
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError, ShoalError, error_from_name, name_of
from shoal.net import messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Refusal
from shoal.net.messages import MessageError
from shoal.tuning.channels import Threads

_MOST_PROCESSORS = 2**16


class Gathering:
    """``shared``: what must be equal everywhere. Members are added to ``links``.

    ``reached``: this machine's addresses at which the other ranks have reached it, by rank, once all of them have
    joined.
    ``outsiders``: those that have proven themselves but do not fit. They hear a refusal like the members do.
    """

    def __init__(
        self,
        settings: Settings,
        shared: dict[str, str],
        meeting_point: MeetingPoint,
        links: ControlLinks,
        deadlines: Deadlines,
    ) -> None:
        self.reached: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.outsiders: list[tuple[int, socket.socket]] = []
        self._settings = settings
        self._shared = shared
        self._meeting_point = meeting_point
        self._links = links
        self._deadlines = deadlines
        self._unproven = UnprovenCallers(settings.tls)

    async def run(self) -> None:
        clock = self._links.clock(min(self._settings.timeout, self._deadlines.rendezvous), self._what_to_do)
        while len(self._links.members) < self._settings.size:
            try:
                event = await clock.next(self._who_is_missing)
            except GaveUp as gave_up:
                raise self._explanation() or gave_up from None
            if isinstance(event, Joining):
                self._add(self.checked(event))
            elif isinstance(event, Quiet):
                self._reconsider(event)
            else:
                raise failure_of(event)

    def checked(self, joining: Joining) -> Member:
        """Raises for a rank that does not fit."""
        member = self._parsed(joining)
        size = self._settings.size
        claimed = joining.message.integer("size", 1, MOST_RANKS)
        if claimed != size:
            self._refuse(member, f"{member} says that the job has {claimed} ranks, rank 0 that it has {size}")
        if member.rank >= size:
            self._refuse(member, f"{member} does not fit into a job of {size} ranks: check RANK")
        other = self._links.members.get(member.rank)
        if other is not None:
            self._refuse(
                member,
                f"two processes joined as rank {member.rank}: one on host {other.host}, one on host {member.host}: "
                "check RANK, and whether another job uses the same rendezvous (SHOAL_RENDEZVOUS)",
            )
        self._compare(member, joining.message.text_map("settings"))
        self._compare_rails(member)
        return member

    @property
    def unproven_ranks(self) -> set[int]:
        """Whose numbers were used without a proof while they were missing."""
        return self._unproven.ranks()

    def note_unproven(self, rank: int, refusal: Refusal, caller: str) -> bool:
        """Somebody says that it is this rank, without a proof. Whether it may be one that is missing."""
        if rank >= self._settings.size or rank in self._links.members:
            return False
        known = len(self._unproven.ranks())
        self._unproven.note(rank, refusal, caller)
        if len(self._unproven.ranks()) > known:
            self._await_quiet()
        return True

    def _await_quiet(self) -> None:
        quiet = Quiet(len(self._links.members), len(self._unproven.ranks()))
        self._links.put_later(self._deadlines.unproven, quiet)

    def _reconsider(self, quiet: Quiet) -> None:
        """Raises the explanation, if nobody has come for a while and each rank that is missing has one."""
        unproven = self._unproven.ranks()
        unchanged = quiet == Quiet(len(self._links.members), len(unproven))
        if unchanged and unproven.issuperset(self._missing()) and (explanation := self._explanation()) is not None:
            raise explanation

    def _explanation(self) -> ShoalError | None:
        missing = self._missing()
        return self._unproven.explanation(missing, f"{list_of(missing)} did not join")

    def _missing(self) -> list[int]:
        """Rank 0 itself may wait for the others first."""
        return [rank for rank in range(1, self._settings.size) if rank not in self._links.members] or [0]

    def _who_is_missing(self) -> str:
        return f"{list_of(self._missing())} of {self._settings.size} to join at {self._meeting_point.listens_at}"

    def _what_to_do(self) -> str:
        """Whoever has met one of the others knows that they are more than a promise."""
        promise = "" if set(self._links.members) - {0} else self._settings.launch.promise
        return f"{SEE_WHETHER}; {promise}" if promise else SEE_WHETHER

    def _add(self, member: Member) -> None:
        self._links.add(member)
        members = self._links.members
        if len(members) - (0 in members) == self._settings.size - 1 and not self.reached.done():
            others = sorted(rank for rank in members if rank != 0)
            self.reached.set_result([sockets.local_address(members[rank].link).host for rank in others])
        if self._unproven.ranks():
            self._await_quiet()

    def _parsed(self, joining: Joining) -> Member:
        message = joining.message
        try:
            if message.kind == "refused":
                refusal = _refusal_before_joining(joining)
                self.outsiders.append((joining.rank, joining.link))
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
                Threads(message.integer("threads", 0, MOST_LANES), message.integer("processors", 1, _MOST_PROCESSORS)),
                parse_ends(message),
                joining.link,
            )
        except MessageError as error:
            self.outsiders.append((joining.rank, joining.link))
            raise ShoalError(f"rank {joining.rank} at {sockets.peer_name(joining.link)}: {error}") from None

    def _refuse(self, member: Member, why: str) -> NoReturn:
        self.outsiders.append((member.rank, member.link))
        raise ConfigurationError(why)

    def _compare(self, member: Member, theirs: dict[str, str]) -> None:
        members = self._links.members
        for name in sorted({*self._shared, *theirs}):
            ours, other = self._shared.get(name, "unknown"), theirs.get(name, "unknown")
            if ours != other:
                zero = "rank 0" if 0 not in members else str(members[0])
                self._refuse(
                    member,
                    f"{name} differs: {ours} on {zero}, {other} on {member}; it must be the same on every rank",
                )

    def _compare_rails(self, member: Member) -> None:
        for other in self._links.members.values():
            if len(other.rails) != len(member.rails):
                self._refuse(
                    member,
                    f"SHOAL_INTERFACE: {_interfaces_of(other)}, {_interfaces_of(member)}; name one interface for each "
                    "network, on every rank the same number of them",
                )


def _interfaces_of(member: Member) -> str:
    names = ", ".join(end.name for end in member.rails)
    return f"{member} uses {len(member.rails)} networks ({names})" if names else f"{member} uses one network"


def _refusal_before_joining(joining: Joining) -> ShoalError:
    """What went wrong on a rank that had reached rank 0, but could not join."""
    error = messages.error_of(joining.message)
    return error_from_name(
        name_of(error), f"rank {joining.rank} at {sockets.peer_name(joining.link)} could not join: {error}"
    )
