"""The front of a dedicated server: lets workers in and hands their connections to the native core.

A caller that does not prove within a few seconds that it holds a secret is dropped. What a ``job`` message says is checked
field by field before anything is made for it; docs/protocol/format.md, Messages. It serves any number of jobs, at once or
one after another. Of a job that has ended only the incarnation is kept. A job belongs to the secret that its first
connection has proven: a caller with another secret can neither join nor end it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from shoal import _native
from shoal.assembly import secrets
from shoal.assembly.terms import JobRequest, JobTerms, parse_job
from shoal.config.addresses import Address, is_loopback
from shoal.config.settings import secret_folder
from shoal.errors import ConfigurationError, ShoalError
from shoal.net import descriptors, encryption, listening, messages, sockets
from shoal.net.deadlines import DEFAULT, Deadlines
from shoal.net.handshake import Hello, Role, Server
from shoal.net.messages import MessageError
from shoal.net.rejections import Rejections
from shoal.server.listeners import listen_on, reached_at
from shoal.server.memory import for_jobs
from shoal.tuning import probe

_log = logging.getLogger("shoal")

# Connections that have not been handed to the core yet; further ones wait in the kernel.
_AT_ONCE = 256

# Incarnations that are remembered so that a late connection does not bring an ended job back.
_ENDED_REMEMBERED = 1024

# Descriptors that no job gets: for callers who have not said who they are, and files.
_LEFT_FREE = 16

# Seconds for which a job that finds too little memory is not refused yet: another one may be about to end.
_MEMORY_WAIT = 2.0

Ready = Callable[[str, int], None]


def serve(
    host: str,
    port: int | tuple[int, int],
    proxies: int,
    secrets: Sequence[bytes],
    ready: Ready | None = None,
    *,
    encrypts: bool = False,
    memory: int = 0,
    interfaces: Sequence[str] = (),
) -> None:
    """Serves until SIGTERM or SIGINT. ``ready`` is called with host and port once listening.

    ``port`` 0: any free one; SHOAL_PORT_RANGE, the first and the last: any free one of these, at a numeric ``host``.
    ``secrets``: a worker must hold one of them. Without any, the host must be a loopback address, and the secret is the one
    that this user's processes share. ``encrypts``: SHOAL_TLS=psk. ``memory``: bytes that this process may
    take; 0: as many as its jobs want. ``interfaces``: SHOAL_INTERFACE, where it listens as well if the host is not a loopback
    address. Raises ConfigurationError for an address that cannot be listened on, without a secret,
    without what encryption needs, or for less memory than a job needs.
    """
    descriptors.raise_to_the_most("shoal server")
    front = Front(host, port, proxies, secrets, encrypts=encrypts, memory=memory, interfaces=interfaces)
    asyncio.run(_serve_until_signal(front, ready))


async def _serve_until_signal(front: "Front", ready: Ready | None) -> None:
    serving = asyncio.create_task(front.run())
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    if ready is not None:
        ready(*front.address)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


@dataclass
class _Job:
    """A job that this server takes part in."""

    terms: JobTerms
    # The one that its first connection has proven.
    secret: bytes = field(repr=False)
    # Of rank 0's process; None until it has connected.
    owner: bytes | None = None
    # Connections that have been let in and are not with the core yet.
    arriving: int = 0


class Front:
    """A listening server. ``run`` serves until it is cancelled; then every link is closed."""

    def __init__(
        self,
        host: str,
        port: int | tuple[int, int],
        proxies: int,
        secrets: Sequence[bytes],
        deadlines: Deadlines = DEFAULT,
        *,
        encrypts: bool = False,
        memory: int = 0,
        interfaces: Sequence[str] = (),
    ) -> None:
        if encrypts:
            encryption.require()
        self._encrypts = encrypts
        self._secrets = list(secrets) or [_secret_for(host)]
        self._deadlines = deadlines
        self._listeners = listen_on(host, port, interfaces)
        self.address = sockets.local_address(self._listeners[0])
        self.addresses = reached_at(self._listeners)
        # Names this server, by whatever address it is reached.
        self._id = os.urandom(16)
        self._core = _native.Server(proxies, for_jobs(memory) if memory else 0)
        self._jobs: dict[bytes, _Job] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._name = f"the server at {self.address}"
        self._turned_away = 0
        self._rejections = Rejections(self._name)

    async def run(self) -> None:
        try:
            await listening.Acceptor(
                self._listeners, self._admit, self._rejections.note, _AT_ONCE, self._has_no_descriptors
            ).run()
        finally:
            self._core.close()

    def statistics(self) -> dict[str, int]:
        """The core's counters, and ``refused_`` and a reason of ``Rejections.counts`` → connections not let in."""
        refused = {f"refused_{reason}": count for reason, count in self._rejections.counts().items()}
        return {**self._core.statistics(), **refused}

    async def _admit(self, link: socket.socket, proven: Callable[[], None]) -> None:
        server = Server(self._secrets, self._id, [Role.SERVER, Role.MEASURE], encrypts=self._encrypts)
        hello = await asyncio.wait_for(sockets.authenticate_server(link, server), self._deadlines.stranger)
        proven()
        if hello.role == Role.MEASURE:
            await probe.answer(link, self.addresses)
            return
        # One that has a secret: it may be stopped between two words.
        message = await asyncio.wait_for(sockets.receive_message(link), self._deadlines.proven)
        try:
            assert server.secret is not None, "a handshake that is done has proven a secret"
            request = self._checked(hello, message, server.secret)
            self._provide_descriptors(hello, request, link)
        except ShoalError as error:
            await self._refuse(hello, link, error)
        job = self._jobs[hello.incarnation]
        job.arriving += 1
        try:
            try:
                await self._provide_memory(hello, request)
            except ConfigurationError as error:
                await self._refuse(hello, link, error)
            # Frames follow at once on both sides, so the core gets the link only when "ready" is out.
            await sockets.send(link, messages.pack("ready", {}))
            self._attach(hello, request, link)
        finally:
            job.arriving -= 1
            if hello.incarnation in self._ended:  # meanwhile
                self._core.release(hello.incarnation)

    def _checked(self, hello: Hello, message: messages.Message, secret: bytes) -> JobRequest:
        """``secret``: the one that the caller has proven. Raises MessageError. Ends the jobs that this one replaces."""
        request = parse_job(message)
        if hello.rank >= request.terms.size:
            raise MessageError(f"rank {hello.rank} does not fit into a job of {request.terms.size} ranks")
        if hello.incarnation in self._ended:
            raise MessageError("this job has ended: its rank 0 has begun another")
        self._forget_finished()
        job = self._jobs.get(hello.incarnation)
        if job is not None and job.secret != secret:
            raise MessageError(
                "this job belongs to another secret that this server holds: set SHOAL_SECRET to the job's"
            )
        if job is not None and (difference := job.terms.difference(request.terms)):
            raise MessageError(f"the field '{difference}' is not what the job's first rank said")
        if job is None:
            self._jobs[hello.incarnation] = job = _Job(request.terms, secret)
            _log.info("a job of %d ranks begins: %s", request.terms.size, hello.incarnation.hex())
        if hello.rank == 0 and job.owner is None:
            self._end_older(request.owner, secret)
            job.owner = request.owner
        return request

    def _provide_descriptors(self, hello: Hello, request: JobRequest, link: socket.socket) -> None:
        """A job that would leave none for others is refused, whole, since one of its ranks is. Raises ConfigurationError.

        The lowest free number is handed out: all below this link's are in use.
        """
        allowed, size = descriptors.allowed(), request.terms.size
        held = self._core.statistics()["links"] + sum(job.arriving for job in self._jobs.values())
        used = max(link.fileno() + 1, held)
        is_new = self._jobs[hello.incarnation].arriving == 0 and hello.incarnation not in self._core.jobs()
        if used + _LEFT_FREE > allowed or (is_new and held + size + _LEFT_FREE > allowed):
            raise ConfigurationError(
                f"{self._name} has too few descriptors for this job: each lane (SHOAL_SOCKETS) of its {size} ranks needs {size}, "
                f"{_LEFT_FREE} must stay free, {used} are in use and it may have {allowed}; {descriptors.HOW_TO_RAISE}, or use more "
                "servers"
            )

    async def _provide_memory(self, hello: Hello, request: JobRequest) -> None:
        """A job for which there is not enough memory is refused, if other jobs do not end just now. Raises ConfigurationError."""
        config = _core_config(request.terms, self.address)
        deadline = time.monotonic() + _MEMORY_WAIT
        while problem := self._core.reserve(hello.incarnation, request.index, config):
            if time.monotonic() > deadline:
                raise ConfigurationError(problem)
            await asyncio.sleep(_MEMORY_WAIT / 20)
            self._forget_finished()

    async def _refuse(self, hello: Hello, link: socket.socket, error: ShoalError) -> NoReturn:
        _log.warning("refused rank %d at %s: %s", hello.rank, sockets.peer_name(link), error)
        await sockets.say_last_words(link, messages.pack_refused(error))
        raise MessageError(str(error)) from None

    def _has_no_descriptors(self, error: OSError) -> None:
        self._turned_away += 1
        if self._turned_away & (self._turned_away - 1) == 0:
            _log.error(
                "%s turns callers away (%d until now): %s", self._name, self._turned_away, descriptors.say_gone(error)
            )

    def _attach(self, hello: Hello, request: JobRequest, link: socket.socket) -> None:
        if hello.incarnation in self._ended:  # while "ready" was on its way
            link.close()
            return
        config = _core_config(request.terms, self.address)
        try:
            self._core.attach(
                hello.incarnation, request.index, request.attempt, hello.rank, encryption.hand_over(link), config
            )
        except (RuntimeError, ValueError) as error:
            _log.warning("rank %d of job %s: %s", hello.rank, hello.incarnation.hex(), error)

    def _forget_finished(self) -> None:
        """Jobs all of whose links are gone, or that never had one."""
        living = set(self._core.jobs())
        gone = [known for known, job in self._jobs.items() if known not in living and job.arriving == 0]
        for incarnation in gone:
            del self._jobs[incarnation]
            self._core.release(incarnation)

    def _end_older(self, owner: bytes, secret: bytes) -> None:
        """A process is rank 0 of one job at a time: its older ones are over, whatever their other ranks believe.

        Who it is, is not secret on the wire: only jobs that the caller could have taken part in are ended.
        """
        older_ones = [known for known, job in self._jobs.items() if (job.owner, job.secret) == (owner, secret)]
        for older in older_ones:
            del self._jobs[older]
            self._ended[older] = None
            while len(self._ended) > _ENDED_REMEMBERED:
                self._ended.popitem(last=False)
            _log.info("job %s ends: its rank 0 has begun another", older.hex())
            self._core.end_job(older, "its rank 0 has begun another job")
            self._core.release(older)


def _secret_for(host: str) -> bytes:
    if not is_loopback(host):
        raise ConfigurationError(
            f"a server that listens on {host} can be reached from other machines and needs a secret: {secrets.HOW_TO_MAKE_ONE}"
        )
    return secrets.user_secret(secret_folder(os.environ))


def _core_config(terms: JobTerms, address: Address) -> _native.JobConfig:
    """A dedicated server need not know who the other servers are: its own name is all that it ever says."""
    return _native.JobConfig(
        hosts=list(terms.hosts),
        server_names=[f"the server at {address}"] * len(terms.weights),
        server_ranks=[-1] * len(terms.weights),
        weights=list(terms.weights),
        segment=terms.limits.segment,
        credit=terms.limits.credit,
        eager=terms.limits.eager,
        small=terms.limits.small,
        least_shard=terms.limits.least_shard,
        least_segment=terms.limits.least_segment,
        rank_segment=terms.limits.rank_segment,
        rank_credit=terms.limits.rank_credit,
        peer_timeout=terms.peer_timeout,
        ring=terms.algorithm == "ring",
        lanes=terms.lanes,
        networks=terms.networks,
        channels=terms.channels,
        leaders=list(terms.leaders),
    )
