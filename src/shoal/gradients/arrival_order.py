"""When the gradients' order in the arenas is renewed.

Gradients should lie in the order in which the backward pass delivers them, so that buffers become complete one after
the other. The first pass shows that order (docs/decisions/arena.md). If later passes settle on another one, the arenas
follow. But that may move every gradient, so it is considered only after every FIRST_INTERVAL passes, an interval that
doubles each time the order was renewed. The order that one rank saw counts; it tells the others, which all ask at the
same pass. See section 6.2.1 of the paper on PyTorch's DistributedDataParallel.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import ShoalError
from shoal.gradients.arrangement import Arrangement
from shoal.gradients.named_operations import NamedOperations
from shoal.ops.submissions import AnyHandle

ORDER = "order"

FIRST_INTERVAL = 100


class ArrivalOrder:
    """The arrivals of the passes since the last look. Gradients are known by their index."""

    def __init__(self) -> None:
        self._interval = FIRST_INTERVAL
        self.is_known = False
        self.restart()

    def restart(self) -> None:
        """Forgets what was seen, but not how often the order was renewed: after a pass that failed on every rank."""
        self._passes = 0
        self._last: list[int] = []
        self._repeated = 0

    @property
    def is_due(self) -> bool:
        """Whether the ranks exchange the order at the end of this pass: the same on all of them."""
        return not self.is_known or self._passes + 1 >= self._interval

    def passed(self, arrivals: list[int]) -> None:
        """A pass has ended well. ``arrivals``: its gradients as they came; none on a rank that only took part."""
        self._passes += 1
        if arrivals and arrivals == self._last:
            self._repeated += 1
        elif arrivals:
            self._last, self._repeated = arrivals, 1

    def settled_on(self, now: Sequence[int]) -> list[int]:
        """After ``passed``: the order that this rank would have. ``now`` is the present one.

        The same unless this is the first look, or half of the passes, the last ones, have all had another order.
        """
        if self.is_known and self._repeated * 2 < self._interval:
            return list(now)
        # A gradient that two nested passes reach arrives twice: its first arrival counts.
        seen = dict.fromkeys(self._last)
        return [*seen, *(index for index in now if index not in seen)]

    def looked(self, renewed: bool) -> None:
        """The ranks have exchanged the order. ``renewed``: whether it is another one than before."""
        if self.is_known and renewed:
            self._interval *= 2
        self.is_known = True
        self.restart()

    def exchange(self, operations: NamedOperations, now: Arrangement, root: int, label: str = "") -> "SentOrder":
        """After ``passed``, where it was due: the order of the group's member ``root`` goes to all others. ``label``: before the operation's."""
        wanted = self.settled_on(now.order) if operations.group.rank == root else now.order
        if self.is_known and not now.changes_buffers(wanted):
            wanted = now.order
        order = np.array(wanted, np.int64)
        return SentOrder(operations, operations.broadcast(label + ORDER, order, root), order, list(now.order))


class SentOrder(NamedTuple):
    """An order on its way to all ranks. ``order`` holds it when ``handle`` is done. ``before``: the one until now."""

    operations: NamedOperations
    handle: AnyHandle
    order: npt.NDArray[np.int64]
    before: list[int]

    def received(self) -> list[int]:
        """Waits for it. May be called again where that was interrupted."""
        self.handle.wait()
        order: list[int] = self.order.tolist()
        if sorted(order) != list(range(len(order))):
            raise ShoalError(f"{self.operations.here}: the order of the gradients that was broadcast is damaged")
        return order
