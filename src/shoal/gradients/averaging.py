"""The operations of one pass.

Invariant: every rank opens the same operations, each exactly once, either with its data or as failed. So a rank that
cannot go on never leaves another waiting, and after an error the ranks still agree about what comes next.

    layout              all ranks have the same parameters in the same places
    <dtype>.buffer<n>   the mean of a fusion buffer
    needed              only with find_unused_parameters: which buffers a rank will have gradients for
    used                only with find_unused_parameters: which gradients a rank has had

If no rank has a gradient for a buffer, none opens it. If the layouts differ, or the ranks could not say what they need,
every rank opens every buffer as failed.
"""

import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from shoal.gradients.agreement import Statement
from shoal.gradients.buffers import BufferProgress
from shoal.gradients.named_operations import NamedOperations
from shoal.gradients.needed_buffers import NEEDED, NeededBuffers
from shoal.job import trace
from shoal.ops.submissions import Pending, first_failure

LAYOUT, USED = "layout", "used"

# Those that are on no buffer, and may fail.
SMALL = (NEEDED, USED)


class Buffer(Protocol):
    """A balanced fusion buffer: a slice of an arena."""

    @property
    def label(self) -> str:
        """Unique among those of the model."""

    @property
    def memory(self) -> Any:
        """An array of one dimension, in the dtype that is summed."""

    @property
    def gradients(self) -> Sequence[int]:
        """The indices of the gradients that it holds bytes of."""


AnyBuffer = TypeVar("AnyBuffer", bound=Buffer)


class Averaging(Generic[AnyBuffer]):
    """``touched``: by gradient, the buffers that hold bytes of it. ``frozen``: gradients that do not come.

    ``expected``: where unused parameters are looked for, the gradients that this rank will have; otherwise None.

    Gradients are known by their index in the arenas. A buffer is submitted once all its gradients are ready and it is
    known to be needed. A buffer that holds only frozen ones is not sent.
    """

    def __init__(
        self,
        operations: NamedOperations,
        buffers: Sequence[AnyBuffer],
        touched: Sequence[Sequence[int]],
        frozen: Collection[int],
        statement: Statement,
        expected: Iterable[int] | None,
    ) -> None:
        self._operations = operations
        self._buffers = buffers
        self._touched = touched
        self.progress = BufferProgress([buffer.gradients for buffer in buffers], touched, frozen)
        self._numbers = {buffers[number].label: number for number in self.progress.filled}
        self._unopened = set(self._numbers) if expected is None else {*self._numbers, USED}
        self._labels = sorted(self._unopened if expected is None else {*self._unopened, NEEDED})
        self._handles: dict[str, Pending] = {}
        self._failed_because: str | None = None
        self.disagreed = False
        """After ``finish``: whether the ranks have found that their layouts differ."""
        self.submitted_ns = 0
        """When the first buffer was submitted, of the monotonic clock."""
        # What is needed after all is opened by whoever learns of it first: the backward pass, or a thread of Shoal's
        # own.
        self._opening = threading.Lock()
        self._comparison = statement.compare(operations, LAYOUT)
        self._needed = None if expected is None else NeededBuffers(operations, touched, len(buffers), expected)

    def will_be_sent(self, gradient: int) -> bool:
        """Whether all bytes of the gradient are sent in this pass. May wait until the ranks say what they need."""
        return self._needed is None or self._needed.includes(self._touched[gradient])

    @property
    def sent(self) -> list[tuple[AnyBuffer, Pending]]:
        """The buffers that have been submitted, with their operations."""
        return [(buffer, self._handles[buffer.label]) for buffer in self._buffers if buffer.label in self._handles]

    @property
    def operation_count(self) -> int:
        """How many there are, with the small ones by which the ranks agree."""
        return len(self._handles) + (1 if self._needed is None else 2)

    def scale(self, factor: float) -> None:
        """After ``finish``: multiplies what was averaged."""
        if factor != 1:
            for buffer, _ in self.sent:
                memory = buffer.memory
                memory *= factor

    def ready(self, gradient: int) -> None:
        """The gradient is in its place. Submits the buffers that it completes, and those now known to be needed."""
        for number in self.progress.ready(gradient):
            if self._needed is None or self._needed.is_certain(number):
                self._submit_buffer(number)
            else:
                self.progress.waiting.append(number)
        if self.progress.waiting:
            self._submit_waiting()

    def exchange_used(self, used: Any) -> None:
        """``used``: uint8 by gradient, 1 where this rank had one. Holds what any rank had after ``finish``."""
        self._opens(USED)
        self._handles[USED] = self._operations.allreduce(USED, used, "max")

    def abandon(self, reason: str) -> None:
        """Opens what is not open yet as failed. Does not wait: what may not be needed follows when that is known."""
        self._fail_certain(reason)
        if self._unopened and self._needed is not None:
            self._needed.handle.call_when_done(self._open_needed)

    def finish(self, error: Exception | None) -> None:
        """Waits until every operation is done. Raises ``error`` or the first one that came up."""
        if error is not None:
            self._fail_certain(str(error))
        disagreement = self._disagreement()
        if disagreement is not None:
            self.disagreed = True
            self._fail(set(self._unopened), str(disagreement))
        with trace.span("wait for fusion buffers"):
            failure = self.wait()
        problem = error or disagreement or failure
        if problem is not None:
            raise problem

    def wait(self) -> Exception | None:
        """Waits until nothing reads or writes the arenas any more. Returns the first failure."""
        self._open_needed()
        return first_failure(self._handles.values())

    def submit(self, buffer: AnyBuffer) -> Pending:
        """Starts to average a complete buffer, in place."""
        return self._operations.allreduce(buffer.label, buffer.memory, "mean")

    def fail(self, label: str, reason: str) -> None:
        """Tells the other ranks that this one cannot take part in that operation."""
        self._operations.fail(label, reason)

    def _submit_buffer(self, number: int) -> None:
        buffer = self._buffers[number]
        self._opens(buffer.label)
        self._handles[buffer.label] = self.submit(buffer)
        self.progress.submitted(number)

    def _submit_waiting(self) -> None:
        assert self._needed is not None
        if self._needed.handle.done():
            needed = self._needed.answer()
            for number in self.progress.waiting:
                if number in needed:
                    self._submit_buffer(number)
            self.progress.waiting.clear()

    def _open_needed(self) -> None:
        """Waits until the ranks have said what they need, and opens it if it is not open."""
        if self._needed is None:
            return
        needed = self._needed.answer()
        with self._opening:
            if self._failed_because is None:
                self._submit_waiting()
            else:
                self._fail(
                    {label for label in self._unopened if self._numbers.get(label) in needed}, self._failed_because
                )

    def _fail_certain(self, reason: str) -> None:
        """Opens whatever is opened in any case as failed."""
        maybe = (
            set()
            if self._needed is None
            else {label for label, index in self._numbers.items() if not self._needed.is_certain(index)}
        )
        self._fail(self._unopened - maybe, reason)

    def _opens(self, label: str) -> None:
        self._unopened.discard(label)
        self.submitted_ns = self.submitted_ns or time.monotonic_ns()

    def _disagreement(self) -> Exception | None:
        """The error that says how the ranks' layouts differ, once every operation that a rank opened has failed."""
        try:
            if self._comparison.agreed():
                return None
            error, labels = self._comparison.explain("gradients", self._labels)
        except RuntimeError as failure:
            return failure
        self._fail(labels.difference(self._labels), str(error))
        return error

    def _fail(self, labels: Iterable[str], reason: str) -> None:
        self._failed_because = self._failed_because or reason
        for label in sorted(labels):
            self._unopened.discard(label)
            self.fail(label, reason)
