"""The operations of one backward pass.

Invariant: every rank opens the same operations, each exactly once, either as what it is or as failed. So a rank that
cannot go on never leaves another waiting, and after an error the ranks still agree about what comes next.

    layout              all ranks have the same parameters in the same places
    <dtype>.buffer<n>   the mean of a fusion buffer
    used                only where unused parameters are looked for: which of them a rank had a gradient for
"""

from collections.abc import Iterable

import torch

from shoal import trace
from shoal.handles import Handle
from shoal.torch.agreement import Statement
from shoal.torch.arena import GradientArenas
from shoal.torch.channel import Channel

LAYOUT, USED = "layout", "used"


class Averaging:
    """``find_unused``: whether the operation ``used`` is one of the pass.

    Gradients are known by their index in the arenas. A buffer is submitted once all its gradients are ready.
    """

    def __init__(self, channel: Channel, arenas: GradientArenas, statement: Statement, find_unused: bool) -> None:
        self._channel = channel
        self._arenas = arenas
        self._ready: set[int] = set()
        self._unready = [len(buffer.gradients) for buffer in arenas.buffers]
        self._unopened = {buffer.label for buffer in arenas.buffers} | ({USED} if find_unused else set())
        self._labels = sorted(self._unopened)
        self._handles: dict[str, Handle] = {}
        self._comparison = statement.compare(channel, LAYOUT)

    def is_ready(self, gradient: int) -> bool:
        return gradient in self._ready

    def is_sent(self, gradient: int) -> bool:
        """Whether some bytes of the gradient have been submitted, so that it must not change any more."""
        return any(self._arenas.buffers[buffer].label in self._handles for buffer in self._arenas.touched[gradient])

    def handle(self, label: str) -> Handle | None:
        """The operation of that label, if it has been submitted."""
        return self._handles.get(label)

    def ready(self, gradient: int) -> None:
        """The gradient is in its place. Submits the buffers that it completes."""
        if gradient in self._ready:
            return
        self._ready.add(gradient)
        for index in self._arenas.touched[gradient]:
            self._unready[index] -= 1
            if self._unready[index] == 0:
                buffer = self._arenas.buffers[index]
                self._submit(buffer.label, buffer.memory, "mean")

    def exchange_used(self, used: torch.Tensor) -> None:
        """``used``: uint8 by gradient, 1 where this rank had one. Holds what any rank had after ``finish``."""
        self._submit(USED, used, "max")

    def abandon(self, reason: str) -> None:
        """Opens what is not open yet as failed. Does not wait."""
        for label in sorted(self._unopened):
            self._channel.fail(label, reason)
        self._unopened.clear()

    def finish(self, error: Exception | None) -> None:
        """Waits until every operation is done. Raises ``error`` or the first one that came up."""
        if error is not None:
            self.abandon(str(error))
        error = error or self._disagreement()
        with trace.span("wait for buffers"):
            failure = self.wait()
        problem = error or failure
        if problem is not None:
            self.abandon(str(problem))
            raise problem

    def wait(self) -> Exception | None:
        """Waits until nothing reads or writes the arenas any more. Returns the first failure."""
        first: Exception | None = None
        for handle in self._handles.values():
            try:
                handle.wait()
            except RuntimeError as failure:
                first = first or failure
        return first

    def _submit(self, label: str, memory: torch.Tensor, op: str) -> None:
        self._unopened.discard(label)
        self._handles[label] = self._channel.allreduce(label, memory, op)

    def _disagreement(self) -> Exception | None:
        """Where the ranks' layouts differ: the error that says how, once every operation that a rank opened is failed."""
        try:
            if self._comparison.agreed():
                return None
            error, labels = self._comparison.explain("gradients", self._labels)
        except RuntimeError as failure:
            return failure
        self._fail_all(labels.difference(self._labels), str(error))
        return error

    def _fail_all(self, labels: Iterable[str], reason: str) -> None:
        for label in sorted(labels):
            self._channel.fail(label, reason)
