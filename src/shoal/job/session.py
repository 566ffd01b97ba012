"""One rank's part in a job, from ``go`` until nobody needs this process any more.

The native engine does the work. A session gives it what it needs from Python: connections to peers on first use and to
servers that come back, a logger for its warnings, and an end. It has two daemon threads: "shoal-events" waits for events of
the engine, "shoal-links" connects and accepts. A session may outlive ``leave``: it goes on while other ranks still need the
server in this process. In a forked child it is inert.
"""

import asyncio
import atexit
import contextlib
import errno
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Awaitable
from typing import TypeVar

from shoal import _native
from shoal.assembly.member import Joined
from shoal.assembly.server_links import introduce, several_servers
from shoal.assembly.terms import rank_name
from shoal.config.addresses import Address
from shoal.config.settings import Settings
from shoal.errors import ShoalError, Timeout, error_from_status
from shoal.job import threads
from shoal.job.per_job import Kept
from shoal.net import sockets
from shoal.net.deadlines import Deadlines
from shoal.net.encryption import hand_over
from shoal.net.handshake import Client, HandshakeRefused, Role
from shoal.net.loop_thread import LoopThread
from shoal.net.redial import reach_rank
from shoal.tuning.shares import ServerPlace

_log = logging.getLogger("shoal")

# Seconds that the event thread waits at a time; it only notices the end of the engine between two waits.
_EVENT_WAIT = 0.1

# Seconds that the event thread may take to notice the end.
_CLEANUP = 5.0

# Seconds between two looks at whether goodbye has been said: at first, and at most.
_FIRST_LOOK, _LONGEST_LOOK = 0.0005, 0.05

_T = TypeVar("_T")

_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def native_config(joined: Joined) -> _native.JobConfig:
    """What the coordinator decided, for the engine."""
    welcome = joined.welcome
    return _native.JobConfig(
        hosts=list(welcome.hosts),
        server_names=welcome.server_names(),
        server_ranks=welcome.server_ranks(),
        weights=list(welcome.terms.weights),
        segment=welcome.limits.segment,
        credit=welcome.limits.credit,
        eager=welcome.limits.eager,
        small=welcome.limits.small,
        least_shard=welcome.limits.least_shard,
        least_segment=welcome.limits.least_segment,
        rank_segment=welcome.limits.rank_segment,
        rank_credit=welcome.limits.rank_credit,
        peer_timeout=welcome.peer_timeout,
        ring=welcome.terms.algorithm == "ring",
        rate=welcome.rate,
        standby=welcome.standby,
        leaders=[] if joined.memory is None else list(welcome.leaders),
        lanes=welcome.lanes,
        networks=welcome.networks,
        channels=welcome.channels,
    )


def start_engine(joined: Joined) -> _native.Engine:
    """An engine that owns all sockets of ``joined`` from here on."""
    engine = _native.Engine(joined.rank, native_config(joined))
    try:
        channel_of = joined.welcome.control_channel
        for number, link in sorted(joined.coordinators.items()):
            engine.attach_coordinator(channel_of(number), hand_over(link))
        for (number, rank), link in sorted(joined.controls.items()):
            engine.attach_control(channel_of(number), rank, hand_over(link))
        for index, link in joined.servers.items():
            engine.attach_server(index, hand_over(link))
        if joined.listener is not None:
            for (index, rank), link in joined.listener.worker_links.items():
                engine.attach_worker(index, rank, hand_over(link))
        if joined.memory is not None:
            engine.share_memory(joined.memory)
            if joined.memory.why_no_arrays:
                _log.debug("rank %d: arrays lie in memory of its own: %s", joined.rank, joined.memory.why_no_arrays)
        engine.start()
    except BaseException:
        engine.close()
        raise
    return engine


class Session:
    """A job as this rank takes part in it. Methods may be called from any thread.

    ``hosts``: the name of each rank's machine, by rank. ``incarnation``: 16 bytes that name this job. ``network``: what was
    measured of its links, None on one machine. ``limits`` and ``weights`` (by server, its lanes counted as one): those that
    hold. ``kept``: what other modules keep for this job (``PerJob``).
    """

    def __init__(self, joined: Joined, settings: Settings, link_thread: LoopThread, deadlines: Deadlines) -> None:
        self.settings = settings
        self.rank = joined.rank
        self.size = len(joined.welcome.hosts)
        self.hosts = list(joined.welcome.hosts)
        self.incarnation = joined.welcome.incarnation
        self.lanes = joined.welcome.lanes
        self.network = joined.welcome.network
        self.limits = joined.welcome.limits
        self.weights = [server.weight for server in joined.welcome.servers]
        self.kept = Kept()
        self._joined = joined
        self._deadlines = deadlines
        self._links = link_thread
        self._inert = False
        self._refusals: set[tuple[ServerPlace, str]] = set()
        self._closing = False
        self._handed_over = False
        self._ended = threading.Event()
        self._finishing = threading.Lock()
        self._engine = start_engine(joined)
        if joined.listener is not None:
            link_thread.run(self._receive_peers())
        self._events = threading.Thread(target=self._serve, name="shoal-events", daemon=True)
        _sessions.add(self)
        try:
            self._events.start()
        except RuntimeError:  # the system has no thread
            _sessions.discard(self)
            self._engine.close()
            raise

    @property
    def engine(self) -> _native.Engine:
        """The native engine, started. Raises ShoalError in a forked child."""
        if self._inert:
            raise ShoalError(
                "this process was forked from one that uses Shoal and is not a rank itself: use Shoal in the parent only"
            )
        return self._engine

    @property
    def serves(self) -> bool:
        """Whether others need this process after it has left: the server in it averages at present, or it is the
        coordinator's."""
        return not self._inert and self._engine.serves()

    def leave(self, timeout: float | None = None) -> None:
        """Says goodbye as soon as this rank's operations are done, and returns when that has happened.

        The session may go on serving others; ``wait_ended`` waits for the end. ``timeout`` in seconds; None: the operations'
        own time-outs are enough. Raises Timeout.
        """
        if self._inert or self._ended.is_set():
            return
        with contextlib.suppress(RuntimeError):  # closed at this moment
            self._engine.leave()
        began, pause = time.monotonic(), _FIRST_LOOK
        while not self._has_left():
            if timeout is not None and time.monotonic() - began >= timeout:
                raise Timeout(
                    f"{rank_name(self.rank, self.hosts)} could not leave the job within {timeout:g} s: operations are still "
                    "open, so another rank has not called them"
                )
            self._ended.wait(pause)
            pause = min(2 * pause, _LONGEST_LOOK)

    def _has_left(self) -> bool:
        return self._ended.is_set() or self._engine.left()

    def has_losses(self) -> bool:
        """Whether a rank or server of the job is known to be lost, or this rank has aborted."""
        return not self._inert and self._engine.has_losses()

    def loss_of(self, rank: int) -> ShoalError | None:
        """Why nothing more can come from that rank: it is lost, or the job has ended. None: nothing says so; it may have left."""
        if not self.has_losses():
            return None
        status = self._engine.loss_of_rank(rank)
        return None if status is None else error_from_status(status.code, status.rank, status.message, self.hosts)

    def wait_ended(self, timeout: float | None = None) -> bool:
        """Waits until no rank needs this process any more, at most ``timeout`` seconds. Whether it has come to that."""
        return self._inert or self._ended.wait(timeout)

    def abort(self, reason: str) -> None:
        """Tells all ranks that this one ends with an error, and closes."""
        if self._inert or self._ended.is_set():
            return
        self._closing = True
        self._engine.abort(reason)
        self.close()

    def close(self) -> None:
        """Ends this rank's part at once: open operations fail, other ranks see it lost. May be called again."""
        if self._inert:
            return
        self._closing = True
        self._engine.close()
        if threading.current_thread() is not self._events:
            self._events.join(_CLEANUP)
        self._finish()

    def finish_at_exit(self, reason: str) -> None:
        """Gives the engine to the exit of the process, where Python is gone: exit status 0 is a goodbye.

        Any other is an abort, with ``reason`` or, if that is empty, with the status. Python does nothing more for it.
        """
        if self._inert or self._closing or self._ended.is_set():
            return
        self._stop_events()
        if not self._ended.is_set():
            self._finish()
            self._engine.finish_at_exit(reason)

    def _stop_events(self) -> None:
        """Ends the event thread, and nothing else."""
        self._handed_over = True
        if not self._inert:
            self._events.join(_CLEANUP)

    # --- The event thread ---

    def _serve(self) -> None:
        try:
            while self._handle(self._engine.next_event(_EVENT_WAIT)):
                if self._handed_over:
                    return
                if self._closing:
                    break
            self._engine.close()
        except Exception:
            # Nobody sees this thread's exception, and without it peers would wait for connections in vain.
            _log.exception("rank %d: Shoal's event thread failed", self.rank)
            self._engine.close()
        self._finish()

    def _handle(self, event: tuple[str, int, str, int] | None) -> bool:
        """Does what the engine asks for. False: it has ended."""
        if event is None:
            return True
        kind, index, text, attempt = event
        if kind == "connect":
            self._links.start(self._connect_peer(index))
        elif kind == "connect_server":
            self._links.start(self._connect_server(index, attempt))
        elif kind == "threads":
            self._engine.note_threads(attempt, threads.count_strangers())
        elif kind == "warning":
            _log.warning("%s", text)
        return kind != "ended"

    def _finish(self) -> None:
        """Whoever comes first, the event thread or a caller of ``close``, closes the listener; both return when it is closed."""
        with self._finishing:
            if self._ended.is_set():
                return
            with contextlib.suppress(RuntimeError):  # the loop has failed and is closed
                self._links.run(self._joined.close())
            self._links.stop()
            self._ended.set()

    # --- Peers, in the link thread ---

    async def _receive_peers(self) -> None:
        assert self._joined.listener is not None, "a job of several ranks has a listener"
        self._joined.listener.hand_peers_to(self._attach_peer)

    def _attach_peer(self, rank: int, link: socket.socket) -> None:
        try:
            self._engine.attach_peer(rank, hand_over(link))
        except (RuntimeError, ValueError) as error:
            if not self._closing:
                _log.warning("%s: no link to rank %d: %s", rank_name(self.rank, self.hosts), rank, error)

    async def _connect_peer(self, rank: int) -> None:
        address = self._joined.welcome.addresses[rank]
        try:
            link = await self._call(rank)
        except (OSError, HandshakeRefused) as error:
            reason = sockets.why(error) if isinstance(error, OSError) else str(error)
            self._engine.peer_unreachable(
                rank,
                f"{rank_name(self.rank, self.hosts)} cannot reach {rank_name(rank, self.hosts)} at {address} ({reason}): see "
                "whether a firewall is between them (SHOAL_PORT_RANGE says which ports are used)",
            )
        else:
            self._attach_peer(rank, link)

    async def _call(self, rank: int) -> socket.socket:
        """Over the first network on which it can be reached. Raises what came of the first of all."""
        failure: OSError | None = None
        for address, sources in self._joined.welcome.ways_to(rank, self.rank):
            try:
                return await self._call_at(rank, address, sources or self._joined.sources)
            except OSError as error:
                failure = failure or error
        assert failure is not None, "every rank has an address"
        raise failure

    async def _call_at(self, rank: int, address: Address, sources: list[str]) -> socket.socket:
        client = Client(
            self._joined.secret,
            Role.PEER,
            self.rank,
            incarnation=self.incarnation,
            encrypts=self.settings.encrypts,
        )
        silence = max(self._joined.welcome.peer_timeout, self._deadlines.peer)
        return (await reach_rank(client, address, sources, silence, self._deadlines)).link

    # --- Servers that were lost and may be back, in the link thread ---

    async def _connect_server(self, first: int, attempt: int) -> None:
        """All lanes that a server has on a network in a channel, the first of which has this index, or none."""
        with contextlib.ExitStack() as found:
            try:
                lanes, process = await self._in_time(self._call_lanes(first, attempt, found))
                for index, link in lanes.items():
                    self._engine.attach_returned(index, attempt, process, hand_over(link))
            except (OSError, HandshakeRefused, RuntimeError) as error:
                # Nobody may be left without an answer; an engine that is closed takes none.
                self._engine.server_unreachable(first, attempt)
                if not self._closing:
                    self._say_not_back(self._place(first), error)

    async def _in_time(self, calling: Awaitable[_T]) -> _T:
        """Whatever a step of it may take, all of it takes no longer. Raises Silent."""
        limit = self._deadlines.returning
        try:
            return await asyncio.wait_for(calling, limit)
        except asyncio.TimeoutError:
            raise sockets.Silent(
                errno.ETIMEDOUT, f"it does not answer on all of its lanes within {limit:g} s"
            ) from None

    async def _call_lanes(
        self, first: int, attempt: int, found: contextlib.ExitStack
    ) -> tuple[dict[int, socket.socket], bytes]:
        """The links by server index, which ``found`` closes unless they are handed over, and the id of the server that they
        all lead to."""
        lanes: dict[int, socket.socket] = {}
        ids: set[bytes] = set()
        for index in self._joined.welcome.lanes_with(first):
            lanes[index], server_id = await self._call_server(index, attempt)
            found.callback(lanes[index].close)
            ids.add(server_id)
        if len(ids) > 1:
            raise several_servers(rank_name(self.rank, self.hosts), self._place(first))
        return lanes, ids.pop()

    def _say_not_back(self, place: ServerPlace, error: Exception) -> None:
        """Nobody may be there for long. A server that refuses is something that somebody has to mend: said once."""
        if isinstance(error, OSError):
            level, reason = logging.INFO, sockets.why(error)
        else:
            level, reason = logging.WARNING, str(error)
            if (place, reason) in self._refusals:
                return
            self._refusals.add((place, reason))
        _log.log(level, "%s cannot use the server at %s again yet: %s", rank_name(self.rank, self.hosts), place, reason)

    def _place(self, index: int) -> ServerPlace:
        return self._joined.welcome.servers[index // self.lanes]

    async def _call_server(self, index: int, attempt: int) -> tuple[socket.socket, bytes]:
        """The link to one lane, and the server's id."""
        welcome = self._joined.welcome
        client = Client(
            self._joined.secret,
            Role.SERVER,
            self.rank,
            lane=index % self.lanes,
            incarnation=self.incarnation,
            encrypts=self.settings.encrypts,
        )
        sources = welcome.sources(index, self.rank) or self._joined.sources
        link, client = await sockets.reach(client, welcome.where(index), sources, self._deadlines.peer)
        try:
            called = f"{rank_name(self.rank, self.hosts)} called the server {self._place(index)} again"
            await introduce(link, welcome, index, called, self._deadlines.peer, attempt)
        except BaseException:
            link.close()
            raise
        assert client.server_id is not None, "a handshake that is done has named the server"
        return link, client.server_id

    def _become_inert(self) -> None:
        self._inert = True


def _stop_event_threads() -> None:
    """A thread that comes back from the native core into an interpreter that has ended would abort the process."""
    for session in list(_sessions):
        session._stop_events()


# After the handlers of whoever imports this, such as the one that says goodbye.
atexit.register(_stop_event_threads)


def _become_inert_in_child() -> None:
    for session in list(_sessions):
        session._become_inert()


os.register_at_fork(after_in_child=_become_inert_in_child)
