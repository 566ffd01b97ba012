"""Which buffers a pass sends where parameters may be unused: those of which some rank has a gradient.

At the beginning of its backward pass each rank says for which buffers it will have gradients, in one small all-reduce.
If it has some for a buffer, the buffer is needed whatever the others say, and is submitted as soon as it is complete. Only
buffers for which it has none wait for the answer. If no rank has any for a buffer, that is not sent at all.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from shoal.gradients.named_operations import NamedOperations

NEEDED = "needed"


class NeededBuffers:
    """``expected``: the gradients that this rank will have. ``touched``: the buffers of each. ``count``: of all."""

    def __init__(
        self, operations: NamedOperations, touched: Sequence[Sequence[int]], count: int, expected: Iterable[int]
    ) -> None:
        self._own = {buffer for gradient in expected for buffer in touched[gradient]}
        self._count = count
        self._votes = np.zeros(count, np.uint8)
        self._votes[sorted(self._own)] = 1
        self._answer: set[int] | None = None
        self.handle = operations.allreduce(NEEDED, self._votes, "max")

    def is_certain(self, buffer: int) -> bool:
        """Whether the buffer is needed, as far as can be told without waiting."""
        return buffer in self._own or (self.handle.done() and buffer in self.answer())

    def includes(self, buffers: Sequence[int]) -> bool:
        """Whether all of them are needed. Waits for the other ranks if it has to."""
        return self._own.issuperset(buffers) or self.answer().issuperset(buffers)

    def answer(self) -> set[int]:
        """Waits for all ranks. Every buffer, on every rank, if one of them could not say what it needs."""
        if self._answer is None:
            try:
                self._answer = self.of_all()
            except RuntimeError:
                self._answer = set(range(self._count))
        return self._answer

    def of_all(self) -> set[int]:
        """Waits for all ranks. Raises RuntimeError if one of them could not say what it needs."""
        self.handle.wait()
        return {buffer for buffer, vote in enumerate(self._votes.tolist()) if vote}
