"""Which fusion buffers of a pass are complete, submitted, or wait until it is known whether they are needed.

Only bookkeeping: there are no arrays or operations here. Gradients and buffers have indices. Invariants:

  * A buffer becomes complete once, when the last of its gradients that will come is ready.
  * A gradient counts as sent from the time at which the first buffer with bytes of it is submitted.
"""

from collections.abc import Collection, Sequence

_NONE: tuple[int, ...] = ()


class BufferProgress:
    """``contents``: by buffer, the gradients that it holds bytes of. ``touched``: by gradient, the buffers that hold
    bytes of it.

    ``frozen``: gradients that do not come. A buffer that holds no others is never complete.
    """

    def __init__(
        self, contents: Sequence[Sequence[int]], touched: Sequence[Sequence[int]], frozen: Collection[int]
    ) -> None:
        self._contents = contents
        self._touched = touched
        self._unready = [len(set(gradients).difference(frozen)) for gradients in contents]
        self._ready: set[int] = set()
        self._sent: set[int] = set()
        self.filled = [buffer for buffer, unready in enumerate(self._unready) if unready]
        """The buffers that hold a gradient that is to come."""
        self.waiting: list[int] = []
        """Complete buffers of which it is not known yet whether they are needed."""

    def ready(self, gradient: int) -> Sequence[int]:
        """The gradient is in its place. Returns the buffers that it completes. May be said again."""
        if gradient in self._ready:
            return _NONE
        self._ready.add(gradient)
        completed: Sequence[int] = _NONE
        for buffer in self._touched[gradient]:
            self._unready[buffer] -= 1
            if self._unready[buffer] == 0:
                completed = [*completed, buffer]
        return completed

    def submitted(self, buffer: int) -> None:
        self._sent.update(self._contents[buffer])

    def is_ready(self, gradient: int) -> bool:
        return gradient in self._ready

    def is_sent(self, gradient: int) -> bool:
        """Whether some bytes of the gradient have been submitted, so that it must not change any more."""
        return gradient in self._sent
