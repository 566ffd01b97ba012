"""static_graph: which gradients come, and how often, is learned from one backward pass and then relied on.

Several nested backward passes may reach one parameter (torch.utils.checkpoint with use_reentrant=True, of a part that is
used twice). Then its gradient is ready only after the last of them, which the graph cannot tell in advance.
"""

from collections import Counter
from collections.abc import Sequence


class StaticGraph:
    """The arrivals of gradients, by their index, in every pass."""

    def __init__(self) -> None:
        self._learned: Counter[int] | None = None
        self._left: Counter[int] = Counter()

    def start(self) -> set[int] | None:
        """A pass begins. The gradients that will come; None if that is not known yet."""
        if self._learned is None:
            return None
        self._left = Counter(self._learned)
        return set(self._learned)

    def arrived(self, index: int) -> bool:
        """A gradient has come. Whether this was its last time in this pass."""
        self._left[index] -= 1
        return self._left[index] == 0

    def learn(self, arrivals: Sequence[int]) -> None:
        """At the end of a pass: what came in it."""
        if self._learned is None and arrivals:
            self._learned = Counter(arrivals)
