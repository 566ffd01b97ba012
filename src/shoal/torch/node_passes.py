"""Backward passes of a wrapper whose nodes sum gradients first (nodes.py).

The life of a pass, on a thread of the wrapper's:

    agreed      waits until the ranks have found that their gradients are the same, and which buffers they need
    scatter     buffer by buffer, in their order: waits until it is complete here, sums it inside the node
    between     starts the average of the own slice between nodes; after the last, waits for all
    gather      buffer by buffer, in their order
    ended       says to all ranks whether all went well, and hears it of them

Invariant: the ranks of a node call the same collectives of the node in the same order, whatever goes wrong. A rank that
has no gradients for a buffer takes part with what lies there, fails the average between nodes, and tells everybody at
the end. Only where a collective of the node itself fails, or a rank of the node is lost, that is over: what is open fails, and so
does every later pass.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from shoal.errors import PeerLost, ShoalError, Timeout
from shoal.gradients.layout import Extent
from shoal.ops.submissions import Pending
from shoal.torch.accelerators import Stream
from shoal.torch.arena import Buffer
from shoal.torch.narrowing import Narrowing
from shoal.torch.node_trouble import GRACE, LOOKS_EVERY, NodeTrouble
from shoal.torch.nodes import Nodes
from shoal.torch.own_thread import OwnThread
from shoal.torch.tensor_operations import TensorOperations

_log = logging.getLogger("shoal")

ENDED, TRIED = "ended", "tried"


class NodePasses:
    """Those of one wrapper. ``operations``: of the wrapper. ``key``: the same on the ranks of a node, and nowhere else.

    ``thread``: theirs alone.
    """

    def __init__(self, nodes: Nodes, operations: TensorOperations, key: str, thread: OwnThread) -> None:
        self.nodes = nodes
        self.operations = operations
        self.between = TensorOperations(nodes.between)
        self.trouble = NodeTrouble(operations.group.session, nodes, key)
        self._thread = thread

    def own(self, count: int) -> Extent:
        """As ``Nodes.own``."""
        return self.nodes.own(count)

    def try_out(self, devices: Iterable[torch.device]) -> None:
        """A pass of a few numbers on each device: collectives that do not work are an error on every rank, and now."""
        # Each number another one, so that slices which go astray are found.
        tensors = [torch.arange(1.0, 2 * self.nodes.members + 2, device=device) for device in devices]
        buffers = {number: Buffer(f"tried{number}", each, (), each[:0], None) for number, each in enumerate(tensors)}
        trial = self.begin(buffers, Narrowing(False), lambda: True, None)
        for buffer in buffers.values():
            trial.submit(buffer, ())
        failure = trial.await_end()
        if failure is not None:
            raise failure
        right = torch.arange(1.0, 2 * self.nodes.members + 2, device="cpu")
        wrong = np.array([not all(bool(((each.cpu() / right - 1).abs() < 0.01).all()) for each in tensors)], np.uint8)
        self.operations.allreduce(TRIED, wrong, "max").wait()
        if wrong[0]:
            raise ShoalError(f"{self.operations.here}: the collectives of intra give wrong sums on some rank")

    def begin(
        self,
        buffers: Mapping[int, Buffer],
        narrowing: Narrowing,
        agreed: Callable[[], bool],
        needed: Callable[[], Collection[int]] | None,
    ) -> "NodePass":
        """``buffers``: by number, those that may be sent. ``narrowing``: of their slices. ``agreed``: waits until the ranks
        have compared their layouts.

        ``needed``: waits until they have said which buffers are needed; None: all are. Both raise what goes wrong.
        """
        begun = NodePass(self, buffers, narrowing, agreed, needed)
        if self.trouble.failure is None:
            self._thread.do(begun.run)
        else:
            begun.give_up(self.trouble.failure)
        return begun


class NodePass:
    """One pass. All but ``run`` is for the thread that computes gradients, or follows it."""

    def __init__(
        self,
        passes: NodePasses,
        buffers: Mapping[int, Buffer],
        narrowing: Narrowing,
        agreed: Callable[[], bool],
        needed: Callable[[], Collection[int]] | None,
    ) -> None:
        self.finished_ns = 0
        """When it was over, of the monotonic clock."""
        self._passes = passes
        self._buffers = buffers
        self._narrowing = narrowing
        self._agreed = agreed
        self._needed = needed
        self._numbers = {buffer.label: number for number, buffer in buffers.items()}
        self._changed = threading.Condition()
        # The next four are guarded by it.
        self._complete: dict[int, str | None] = {}  # buffer → None if its gradients are there, else why they are not
        self._no_more: str | None = None  # why no other will be complete
        self._unopened = set(self._numbers)  # between nodes
        self._error: Exception | None = None
        self._over = threading.Event()

    def submit(self, buffer: Buffer, made_in: Iterable[Stream]) -> Pending:
        """Its gradients are there, as the current stream finds them, and those others."""
        self._passes.nodes.follow(buffer.memory, made_in)
        self._say(buffer.label, None)
        return _Whole(self)

    def fail(self, label: str, reason: str) -> bool:
        """Its gradients will not come. False: no buffer of this pass is called so."""
        return label in self._numbers and self._say(label, reason)

    def await_end(self) -> Exception | None:
        """Once everything is submitted or failed: waits, and returns what went wrong on any rank."""
        with self._changed:
            self._no_more = "its gradients have not come"
            self._changed.notify_all()
        while not self._over.wait(LOOKS_EVERY):
            trouble = self._passes.trouble.look()
            if trouble is not None and not self._over.wait(GRACE):
                self.give_up(trouble)
        return self._error

    def is_over(self) -> bool:
        return self._over.is_set()

    def give_up(self, reason: Exception) -> None:
        """The ranks of other nodes hear of it. The node's collectives may be waited for in vain for ever, and nobody does."""
        with self._changed:
            if self._over.is_set():
                return
            unopened, self._unopened = self._unopened, set()
            self._close(reason)
        self._fail_all(unopened, str(reason))

    # --- On the passes' own thread ---

    def run(self) -> None:
        failure: Exception | None = None
        buffers, agreed, needed = self._buffers, self._agreed, self._needed
        try:
            if not agreed():
                # So it is on every rank, and each of them says how they differ.
                self._end(None)
                return
            sent = buffers.keys() if needed is None else buffers.keys() & needed()
        except (PeerLost, Timeout) as error:
            # Another rank of the node may have got the answer before, and wait for this one.
            self.give_up(self._passes.trouble.tell(error))
            return
        except RuntimeError as error:
            self._end(error)  # what fails otherwise fails on every rank
            return
        try:
            failure = self._average({number: buffers[number] for number in sorted(sent)})
        except _GivenUp:
            return
        except Exception as error:
            _log.debug("%s", error, exc_info=True)
            failure = self._passes.trouble.tell(error)
        with self._changed:
            if self._over.is_set():
                return
            unopened, self._unopened = self._unopened, set()
        if failure is not None:
            # Of the others nobody calls what is not needed.
            self._fail_all(unopened if self._passes.trouble.failure is not None else (), str(failure))
        else:
            try:
                self._passes.operations.allreduce(ENDED, np.zeros(1, np.uint8), "max").wait()
            except RuntimeError as error:
                failure = error
        self._end(failure)

    def _average(self, buffers: Mapping[int, Buffer]) -> Exception | None:
        """Returns the first failure that concerns this pass alone. Raises what the node's collectives raise."""
        nodes, failure = self._passes.nodes, None
        started: list[tuple[Buffer, Pending]] = []
        for number, buffer in buffers.items():
            missing = self._await(number)
            with nodes.beside(buffer.memory):
                for work in nodes.scatter(buffer.memory):
                    work.wait()
                try:
                    handle = self._start(buffer, missing)
                    started += [] if handle is None else [(buffer, handle)]
                except RuntimeError as error:
                    failure = failure or error
        for buffer, handle in started:
            with nodes.beside(buffer.memory):
                try:
                    handle.wait()
                except RuntimeError as error:
                    failure = failure or error
        for buffer in buffers.values():
            with nodes.beside(buffer.memory):
                nodes.gather(buffer.memory)
        for buffer in buffers.values():
            nodes.synchronize(buffer.memory)
        return failure

    def _await(self, number: int) -> str | None:
        """Waits until the buffer's gradients are there, or will not come: then why."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._complete or self._no_more is not None)
            self._check()
            return self._complete.get(number, self._no_more)

    def _check(self) -> None:
        if self._over.is_set():
            raise _GivenUp

    def _start(self, buffer: Buffer, missing: str | None) -> Pending | None:
        """The average between nodes. Raises ShoalError for a buffer whose gradients are ``missing``."""
        between, alone = self._passes.between, self._passes.nodes.count == 1
        with self._changed:
            self._check()
            self._unopened.discard(buffer.label)
        if missing is not None:
            if not alone and buffer.own.numel():
                between.fail(buffer.label, missing)
            raise ShoalError(missing)
        if alone or not buffer.own.numel():
            return None
        return between.average(buffer, self._narrowing)

    def _say(self, label: str, missing: str | None) -> bool:
        with self._changed:
            self._complete.setdefault(self._numbers[label], missing)
            self._changed.notify_all()
        return True

    def _fail_all(self, labels: Iterable[str], reason: str) -> None:
        """What this rank has not opened yet, and the end."""
        for label in sorted(labels):
            self._passes.between.fail(label, reason)
        self._passes.operations.fail(ENDED, reason)

    def _end(self, failure: Exception | None) -> None:
        with self._changed:
            if not self._over.is_set():
                self._close(failure)

    def _close(self, failure: Exception | None) -> None:
        # Another rank may have told of a loss that this one knows of, too.
        loss = None if failure is None else self._passes.trouble.loss_among(self._passes.operations.group.ranks)
        self._error = loss or failure
        # Whoever keeps the error may keep this.
        self._buffers, self._agreed, self._needed = {}, lambda: False, None
        self.finished_ns = time.monotonic_ns()
        self._over.set()


class _GivenUp(Exception):
    """Nobody waits for the pass any more."""


class _Whole:
    """A buffer's average, for those who wait for it: it is there when the pass is over."""

    def __init__(self, its: NodePass) -> None:
        self._pass = its

    def done(self) -> bool:
        return self._pass.is_over()

    def wait(self, timeout: float | None = None) -> Any:
        """As ``Handle.wait``, but for the time, which is that of the operations in it."""
        failure = self._pass.await_end()
        if failure is not None:
            raise failure

    @property
    def finished_ns(self) -> int:
        return self._pass.finished_ns
