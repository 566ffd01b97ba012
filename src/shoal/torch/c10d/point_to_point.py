"""``send`` and ``recv`` of a process group: gloo moves the bytes, and what the job knows of its ranks ends what cannot come.

Two ranks connect when they first exchange something. Until then gloo keeps whoever calls it waiting, and hears of no death; it
cannot be interrupted either. So it is called on threads here, in the order of the program for each other rank, and whoever
waits is told by ``Watch``, not by gloo: that the other rank is lost or has left, or that the time is out.

After a time-out no message of the group is right any more: what comes late is for the ``recv`` that was given up, and the next one would
lose it. The group has no ``send`` and ``recv`` from then on, as with gloo. What comes late must not be written into the program's tensor
either. gloo can close all connections of a group, but must not while it makes one, or it ends the process when the other rank comes. So
they are closed if all are made, and the first message between two ranks is received into memory of its own.

That a rank has left is known to rank 0 alone; here it is a key in the group's store, which is asked for while ranks are not
connected. Where they are, gloo hears of the other's end by itself, and the job says what end it was.
"""

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from shoal import _native
from shoal.assembly.terms import rank_name
from shoal.errors import PeerLost, ShoalError, Timeout
from shoal.job import process_exit
from shoal.job.groups import Group
from shoal.ops import callbacks
from shoal.ops.storages import put
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.c10d.tensors import Flat
from shoal.torch.c10d.threads import Threads
from shoal.torch.c10d.work import OperationWork
from shoal.torch.compiled import untraced_class

# gloo's own limit for what is watched here: a wait whose time is out closes all connections of its group.
_ENDLESS = timedelta(days=1000)

# Seconds between two looks at what is not done, and between two questions who has left.
_LOOK, _ASK = 0.1, 0.3

# What is on its way from a rank that is gone may still come: so many seconds, and these bytes in each more.
_GRACE, _SLOWEST = 0.3, 10e6

# How long the job may take to say why gloo's connection ended, in seconds. A goodbye is as late as the end of a process.
_HEARSAY = 1.5

# How long the threads that are in gloo may take to come back at the end, in seconds.
_FAREWELL = 1.0

# A tag that no program uses: of a message that nobody sends.
_NO_TAG = 2**31 - 77


class Message:
    """One ``send`` or ``recv``, for those who know a ``Handle``. ``peer``: an index into the group; None: any."""

    def __init__(
        self,
        owner: "PointToPoint",
        called: str,
        peer: int | None,
        call: Callable[[], Any],
        finish: Callable[[], None],
        in_flight: int,
        seconds: float,
    ) -> None:
        self.peer = peer
        self.source = -1
        self.has_begun = threading.Event()
        self._owner = owner
        self._called = called
        self._call = call
        self._finish = finish
        self._seconds = seconds
        self._grace = _GRACE + in_flight / _SLOWEST
        self._waited_since = float("inf")  # as with gloo, the time counts from then on
        self._gone_since = 0.0
        self._lock = threading.RLock()  # a Work of this message may be let go of while a thread is being started
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._work: Any = None
        self._failed_to_begin: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._is_awaited = False

    # --- As a handle ---

    def done(self) -> bool:
        self._await()
        self._begin_to_wait(anew=False)
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Raises PeerLost if the other rank is gone, Timeout after the group's or this timeout (it goes on after the latter)."""
        _native.note_call()
        self._begin_to_wait()
        self._await()
        if not self._ended.wait(timeout):
            raise Timeout(f"{self._described()} is not done after {timeout:g} s; it goes on, so wait again")
        if self._error is not None:
            raise self._error.with_traceback(None)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        callbacks.prepare()
        self._begin_to_wait(anew=False)
        self._await()
        callback = callbacks.expected(callback)
        with self._lock:
            has_ended = self._ended.is_set()
            if not has_ended:
                self._callbacks.append(callback)
        if has_ended:
            callbacks.call_soon(callback)

    # --- On threads of its owner ---

    def begin(self) -> None:
        """Hands it to gloo. Waits until the ranks are connected."""
        if self._ended.is_set():
            return
        try:
            self._work = self._call()
        except Exception as error:
            self._failed_to_begin = error
        self.has_begun.set()

    def _run(self) -> None:
        self.has_begun.wait()
        if self._ended.is_set():
            return
        try:
            if self._failed_to_begin is not None:
                raise self._failed_to_begin
            self._work.wait(_ENDLESS)
            if self._ended.is_set():
                return
            if self._owner.is_closed:
                raise RuntimeError("the process group was destroyed")
            self.source = self._work._source_rank() if self.peer is None else self.peer
            self._finish()
        except Exception as error:
            self._explain(error)
        else:
            self.end(None)

    def _explain(self, error: Exception) -> None:
        """gloo has failed: the job may know why, or will soon."""
        until = time.monotonic() + _HEARSAY
        while not self._owner.is_closed:
            gone = self._owner.why_gone(self.peer, also_left=True)
            if gone is not None:
                self.end(self._named(gone))
                return
            if time.monotonic() > until:
                break
            time.sleep(_LOOK / 4)
        if time.monotonic() - self._waited_since >= self._seconds:
            self.end(self._timeout())
        else:
            self.end(ShoalError(f"{self._described()}: {error}"))

    # --- By the watch ---

    def look(self, now: float) -> bool:
        """Ends it if it cannot come any more. Whether it has ended."""
        if self._ended.is_set():
            return True
        if now - self._waited_since >= self._seconds:
            self.end(self._timeout())
            self._owner.give_up(f"{self._described()} has timed out")
            return True
        connected = self.has_begun.is_set() and self.peer is not None
        gone = self._owner.why_gone(self.peer, also_left=not connected)
        if gone is not None:
            self._gone_since = self._gone_since or now
            if now - self._gone_since >= (self._grace if self.has_begun.is_set() else _GRACE):
                self.end(self._named(gone))
                return True
        return False

    def end(self, error: Exception | None) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._error = error
            self._ended.set()
            # What they hold is the program's again.
            self._call = self._finish = _nothing
            followers, self._callbacks = self._callbacks, []
        self.has_begun.set()
        self._owner.open.discard(self)
        for callback in followers:
            callbacks.call_soon(callback)

    def _begin_to_wait(self, anew: bool = True) -> None:
        if anew or self._waited_since == float("inf"):
            self._waited_since = time.monotonic()

    def _await(self) -> None:
        """From now on somebody wants to know when it is done."""
        with self._lock:
            if self._is_awaited or self._ended.is_set():
                return
            self._is_awaited = True
        try:
            _watch.add(self)
            self._owner.threads.run(self._run)
        except RuntimeError:  # the system has no thread
            self._is_awaited = False
            raise

    def _timeout(self) -> Timeout:
        what = "it has not been taken" if self._called.startswith("send") else "nothing has come"
        return Timeout(f"{self._described()}: {what} for {self._seconds:g} s: see what the other rank does instead")

    def _named(self, gone: ShoalError) -> ShoalError:
        text = f"{self._described()}: {gone}"
        return PeerLost(text, gone.rank, gone.host) if isinstance(gone, PeerLost) else type(gone)(text)

    def _described(self) -> str:
        return f"{self._called} {self._owner.name_of(self.peer)} on {self._owner.own_name}"


@untraced_class
class MessageWork(OperationWork):
    """The ``Work`` of a message."""

    def __init__(self, message: Message, tensor: torch.Tensor, call_site: CallSite) -> None:
        handles: Any = [message]
        super().__init__(handles, [tensor], call_site)
        self._message = message

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """What is sent arrives though nobody waits for it."""
        if not ends():
            self._message.done()
        super().__del__()

    def source_rank(self) -> int:
        """Whom it came from, a rank in the group, once it is done."""
        return self._message.source

    _source_rank = source_rank


class PointToPoint:
    """The messages of one process group. ``gloo``: a backend between the same ranks. ``store``: theirs alone."""

    def __init__(self, gloo: Any, store: Store, group: Group, timeout: timedelta) -> None:
        self.threads = Threads("shoal-messages")
        self.open: weakref.WeakSet[Message] = weakref.WeakSet()
        self.is_closed = False
        self._process = os.getpid()
        self._gloo = gloo
        self._group = group
        self._store = PrefixStore(f"left {group.session.incarnation.hex()}", store)
        self._seconds = timeout.total_seconds()
        # The numbers of callbacks of messages are of no use to other ranks, which have other messages.
        self._call_site = CallSite(f"{group.name} messages")
        self._lines: dict[int | None, _Line] = {}
        self._given_up: str | None = None
        self._left: set[int] = set()
        self._asking = threading.Lock()
        self._asked_at = 0.0
        _groups.add(self)

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> MessageWork:
        # Copied if it is not contiguous.
        elements = Flat(tensor).elements
        return self._submit("send to", peer, tensor, lambda: self._gloo.send([elements], peer, tag), _nothing, 0)

    def recv(self, tensor: torch.Tensor, peer: int | None, tag: int) -> MessageWork:
        flat = Flat(tensor)
        line = self._lines.get(peer)
        received = flat.elements if line is not None and line.is_connected else torch.empty_like(flat.elements)

        def call() -> Any:
            if peer is None:
                return self._gloo.recv_anysource([received], tag)
            return self._gloo.recv([received], peer, tag)

        def finish() -> None:
            if received is not flat.elements:
                put(flat.elements, received)
            flat.finish()

        return self._submit("recv from", peer, tensor, call, finish, tensor.nbytes)

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    def give_up(self, why: str) -> None:
        """Ends what is open, and closes all connections if every one is made: nothing of what is on its way may come any more."""
        if self._given_up is not None or self.is_closed:
            return
        # Not that connections are closed: they are not where one is being made.
        self._given_up = (
            f"{why}, so its group has no send and recv any more on this rank: make a new group, or end the job"
        )
        for message in list(self.open):
            message.end(ShoalError(f"{message._described()}: {self._given_up}"))
        if all(line.is_connected for line in self._lines.values()):
            try:
                threading.Thread(target=self._release_gloo, name="shoal-give-up", daemon=True).start()
            except RuntimeError:  # the system has no thread
                self._release_gloo()

    def close(self) -> None:
        """Tells the other ranks that nothing more comes from here, and ends what is open. May be called again."""
        if self.is_closed or self._process != os.getpid():
            return
        self.is_closed = True
        _groups.discard(self)
        _for_a_moment(lambda: self._store.set(str(self._group.rank), ""))
        for message in list(self.open):
            message.end(ShoalError(f"{message._described()}: the process group was destroyed on this rank"))
        if self.threads.are_busy:
            _for_a_moment(self._release_gloo)
            self.threads.join(_FAREWELL)

    def why_gone(self, peer: int | None, also_left: bool) -> ShoalError | None:
        """Why nothing can come from that rank; None: from all others, or since one of them is lost.

        ``also_left``: it counts too that it has left.
        """
        session, ranks = self._group.session, self._group.ranks
        others = [index for index in range(len(ranks)) if index != self._group.rank]
        for index in others if peer is None else [peer]:
            loss = session.loss_of(ranks[index])
            if loss is not None:
                return loss
        wanted = set(others if peer is None else [peer])
        if not also_left:
            return None
        if wanted <= self._left:
            index = min(wanted, default=0)
            return PeerLost(
                f"{self.name_of(index)} has left the job normally" if len(wanted) == 1 else "all other ranks have left",
                ranks[index],
                session.hosts[ranks[index]],
            )
        self._ask(wanted - self._left)
        return None

    def name_of(self, index: int | None) -> str:
        return "any rank" if index is None else rank_name(self._group.ranks[index], self._group.session.hosts)

    @property
    def own_name(self) -> str:
        return rank_name(self._group.session.rank, self._group.session.hosts)

    def _submit(
        self,
        called: str,
        peer: int | None,
        tensor: torch.Tensor,
        call: Callable[[], Any],
        finish: Callable[[], None],
        in_flight: int,
    ) -> MessageWork:
        _native.note_call()
        if peer is not None and (peer not in range(self._group.size) or peer == self._group.rank):
            raise ValueError(f"{called} {peer}: no other rank of the group, which has {self._group.size}")
        if self.is_closed:
            raise ShoalError(f"{called}: the process group was destroyed on this rank")
        if self._given_up is not None:
            raise ShoalError(f"{called} {self.name_of(peer)}: {self._given_up}")
        message = Message(self, called, peer, call, finish, in_flight, self._seconds)
        self.open.add(message)
        line = self._lines.get(peer)
        if line is None:
            line = self._lines[peer] = _Line(self.threads)
        line.begin(message)
        return MessageWork(message, tensor, self._call_site.operation())

    def _ask(self, who: set[int]) -> None:
        """Who of these has left. The answer comes later: the store may be slow, or gone."""
        now = time.monotonic()
        if now - self._asked_at < _ASK or not self._asking.acquire(blocking=False):
            return
        self._asked_at = now

        def ask() -> None:
            try:
                self._left.update(index for index in who if self._store.check([str(index)]))
            except RuntimeError:
                # Its server is gone: the job hears of that itself.
                self._asked_at = time.monotonic() + _HEARSAY
            finally:
                self._asking.release()

        try:
            threading.Thread(target=ask, name="shoal-left", daemon=True).start()
        except RuntimeError:  # the system has no thread: it is asked again
            self._asking.release()

    def _release_gloo(self) -> None:
        """gloo closes all connections of a group when the time of one wait is out, and everybody who is in it comes back."""
        with contextlib.suppress(RuntimeError):
            self._gloo.recv_anysource([torch.empty(1, device="cpu")], _NO_TAG).wait(timedelta(milliseconds=1))


class _Line:
    """What goes between this rank and one other: handed to gloo in the order of the program."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: deque[Message] = deque()
        self.is_connected = False

    def begin(self, message: Message) -> None:
        with self._lock:
            at_once = self.is_connected and not self._waiting
            if not at_once:
                self._waiting.append(message)
                if len(self._waiting) == 1:
                    try:
                        self._threads.run(self._connect)
                    except RuntimeError:  # the system has no thread
                        self._waiting.clear()
                        raise
        if at_once:
            message.begin()

    def _connect(self) -> None:
        while True:
            self._waiting[0].begin()
            with self._lock:
                self.is_connected = True
                self._waiting.popleft()
                if not self._waiting:
                    return


class _Watch:
    """Looks at messages that are not done, on a thread of its own while there are such."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # as that of a message
        self._messages: set[Message] = set()
        self._is_running = False

    def add(self, message: Message) -> None:
        with self._lock:
            if not self._is_running:
                threading.Thread(target=self._run, name="shoal-watch", daemon=True).start()
                self._is_running = True
            self._messages.add(message)

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK)
            with self._lock:
                messages = list(self._messages)
            ended = {message for message in messages if message.look(time.monotonic())}
            with self._lock:
                self._messages -= ended
                if not self._messages:
                    self._is_running = False
                    return


_watch = _Watch()
_groups: "weakref.WeakSet[PointToPoint]" = weakref.WeakSet()


def _close_all() -> None:
    for group in list(_groups):
        group.close()


def _for_a_moment(call: Callable[[], Any]) -> None:
    """Calls it on another thread, which is not waited for without end."""

    def run() -> None:
        with contextlib.suppress(RuntimeError):
            call()

    thread = threading.Thread(target=run, name="shoal-farewell", daemon=True)
    with contextlib.suppress(RuntimeError):  # the system may have no thread for it
        thread.start()
        thread.join(_FAREWELL)


def _nothing() -> None:
    pass


os.register_at_fork(after_in_child=lambda: _groups.clear())
# A thread that comes back from gloo into an interpreter that has ended would abort the process.
process_exit.call_before_leaving(_close_all)
