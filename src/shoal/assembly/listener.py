"""Where a rank listens: for workers that use the server in its process (role 2), for peers (role 3) and to measure (role 4);
on rank 0 for further control links (role 1), where there are several networks or channels.

It is open from before the rank joins until its part in the job is over. Nothing is accepted until the incarnation is known;
until then callers wait in the kernel. Then workers and peers wait for the welcome, which other ranks may have heard first. A
caller that does not prove itself within a few seconds is dropped.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence

from shoal.assembly.further_controls import is_expected
from shoal.assembly.terms import Welcome, parse_job, rank_on
from shoal.config.addresses import Address
from shoal.errors import ConfigurationError, ShoalError
from shoal.net import descriptors, listening, messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Hello, Role, Server
from shoal.net.messages import MessageError
from shoal.net.rejections import Rejections
from shoal.tuning import probe

_log = logging.getLogger("shoal")

# Callers beyond the job's own.
_STRANGERS = 64

_ROLES = (Role.SERVER, Role.PEER, Role.MEASURE)
_ROLES_OF_RANK_ZERO = (*_ROLES, Role.CONTROL)


class Listener:
    """One rank's listener, with a socket for each of its networks. Everything but ``address``, ``addresses`` and
    ``server_id`` belongs to the loop that it is opened in."""

    def __init__(
        self,
        listening_sockets: Sequence[socket.socket],
        secret: bytes,
        rank: int,
        deadlines: Deadlines,
        *,
        encrypts: bool = False,
    ) -> None:
        self.addresses: list[Address] = [sockets.local_address(one) for one in listening_sockets]
        self.address = self.addresses[0]
        # Names the server in this rank, wherever it is reached.
        self.server_id = os.urandom(16)
        # The links of workers to the server in this process, by server index and rank.
        self.worker_links: dict[tuple[int, int], socket.socket] = {}
        # On rank 0, further control links of the others, by number and rank (further_controls).
        self.controls: dict[tuple[int, int], socket.socket] = {}
        self._sockets = listening_sockets
        self._secret = secret
        self._encrypts = encrypts
        self._rank = rank
        self._deadlines = deadlines
        self._rejections = Rejections(f"rank {rank}")
        self._incarnation: bytes | None = None
        self._welcome: asyncio.Future[Welcome] | None = None
        self._failure: asyncio.Future[None] | None = None
        self._came = asyncio.Event()
        self._accepting: asyncio.Task[None] | None = None
        self._on_peer: Callable[[int, socket.socket], None] | None = None
        self._early_peers: list[tuple[int, socket.socket]] = []
        self._turned_away = 0

    def open(self, incarnation: bytes, callers: int) -> None:
        """Begins to accept: connections to measure at once, others after ``welcome``. ``callers``: so many at a time."""
        self._incarnation = incarnation
        self._welcome = asyncio.get_running_loop().create_future()
        self._failure = asyncio.get_running_loop().create_future()
        acceptor = listening.Acceptor(
            self._sockets, self._admit, self._rejections.note, callers + _STRANGERS, self._has_no_descriptors
        )
        self._accepting = asyncio.create_task(acceptor.run())

    def welcome(self, welcome: Welcome) -> "asyncio.Future[None]":
        """Lets in workers and peers. It is opened if it is not. What it returns fails when one cannot be let in while
        the job comes together, and else never ends."""
        if self._incarnation is None:
            self.open(welcome.incarnation, len(welcome.hosts) * (welcome.lanes + 1))
        if welcome.incarnation != self._incarnation:
            raise MessageError("rank 0 said 'measure' for another incarnation than 'welcome'")
        assert self._welcome is not None, "an open listener waits for the welcome"
        assert self._failure is not None, "and may fail"
        self._welcome.set_result(welcome)
        return self._failure

    async def wait_for_workers(self, expected: Iterable[tuple[int, int]]) -> None:
        """Until each of these (server index, rank) has connected. Raises ShoalError naming the first that has not."""
        await self._wait_for(self.worker_links, expected, "server")

    async def wait_for_controls(self, expected: Iterable[tuple[int, int]]) -> None:
        """The same for these further control links (number, rank)."""
        await self._wait_for(self.controls, expected, "control link")

    async def _wait_for(
        self, links: dict[tuple[int, int], socket.socket], expected: Iterable[tuple[int, int]], what: str
    ) -> None:
        for index, rank in expected:
            while (index, rank) not in links:
                self._came.clear()
                try:
                    await asyncio.wait_for(self._came.wait(), self._deadlines.answer)
                except asyncio.TimeoutError:
                    raise ShoalError(
                        f"rank {rank} says that it is connected to {what} {index} on rank {self._rank}, which knows nothing "
                        "of it: see both ranks' output"
                    ) from None

    def hand_peers_to(self, on_peer: Callable[[int, socket.socket], None]) -> None:
        """Peers that are let in from now on, and those that came early."""
        self._on_peer = on_peer
        early, self._early_peers = self._early_peers, []
        for rank, link in early:
            on_peer(rank, link)

    async def close(self) -> None:
        """Lets nobody in any more, and closes what nobody took."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        self._on_peer = None
        listening.close_all(self._sockets)
        early = [link for _, link in self._early_peers]
        for link in [*self.worker_links.values(), *self.controls.values(), *early]:
            link.close()

    async def _admit(self, link: socket.socket, proven: Callable[[], None]) -> None:
        assert self._welcome is not None, "nothing is accepted before the incarnation is known"
        roles = _ROLES_OF_RANK_ZERO if self._rank == 0 else _ROLES
        server = Server([self._secret], self.server_id, roles, incarnation=self._incarnation, encrypts=self._encrypts)
        hello = await asyncio.wait_for(sockets.authenticate_server(link, server), self._deadlines.stranger)
        proven()
        if hello.role == Role.MEASURE:
            if self._welcome.done():
                raise MessageError(f"rank {hello.rank} wants to measure a link of a job that has begun")
            await probe.answer(link)
            return
        welcome = await asyncio.wait_for(asyncio.shield(self._welcome), self._deadlines.answer)
        if hello.role == Role.PEER:
            self._admit_peer(hello.rank, link)
        elif hello.role == Role.CONTROL:
            self._admit_control(welcome, hello, link)
        else:
            # One of ours: it may be stopped between two words.
            await asyncio.wait_for(self._admit_worker(welcome, hello, link), self._deadlines.proven)

    def _has_no_descriptors(self, error: OSError) -> None:
        assert self._failure is not None, "an open listener has one"
        problem = (
            f"{rank_on(self._rank, socket.gethostname())} cannot let another rank in: {descriptors.say_gone(error)}; "
            f"{descriptors.HOW_TO_RAISE}"
        )
        if self._on_peer is not None:
            self._turned_away += 1
            if self._turned_away & (self._turned_away - 1) == 0:
                _log.error("%s (%d times)", problem, self._turned_away)
        elif not self._failure.done():
            self._failure.set_exception(ConfigurationError(problem))
            self._failure.exception()  # it is of no interest to whoever has failed already

    def _admit_peer(self, rank: int, link: socket.socket) -> None:
        if rank >= self._rank:
            raise MessageError(f"rank {rank} called rank {self._rank}, but it is the lower rank that connects")
        if self._on_peer is None:
            self._early_peers.append((rank, link))
        else:
            self._on_peer(rank, link)

    def _admit_control(self, welcome: Welcome, hello: Hello, link: socket.socket) -> None:
        place = hello.lane, hello.rank
        if not is_expected(welcome, *place) or self._on_peer is not None:
            raise MessageError(f"rank {hello.rank} has no control link {hello.lane} to make")
        # Until the job begins it may call again, if its first call broke.
        before = self.controls.pop(place, None)
        if before is not None:
            before.close()
        self.controls[place] = link
        self._came.set()

    async def _admit_worker(self, welcome: Welcome, hello: Hello, link: socket.socket) -> None:
        message = await sockets.receive_message(link)
        try:
            index = self._checked(welcome, hello, message)
        except MessageError as error:
            await sockets.say_last_words(link, messages.pack_refused(error))
            raise
        await sockets.send(link, messages.pack("ready", {}))
        self.worker_links[index, hello.rank] = link
        self._came.set()

    def _checked(self, welcome: Welcome, hello: Hello, message: messages.Message) -> int:
        job = parse_job(message)
        difference = job.terms.difference(welcome.terms)
        if difference:
            raise MessageError(f"rank {hello.rank} and rank {self._rank} were told different '{difference}'")
        server, lane = divmod(job.index, welcome.lanes)
        if welcome.servers[server].rank != self._rank or lane != hello.lane or hello.rank >= job.terms.size:
            raise MessageError(f"rank {hello.rank} looks for server {job.index}, which is not on rank {self._rank}")
        if job.attempt != 0 or (job.index, hello.rank) in self.worker_links:
            raise MessageError(f"rank {hello.rank} is connected to server {job.index} already")
        return job.index
