"""Averages the gradients of one model for a framework whose operations bring them from C++ (native/doors/averager.h).

Native code copies gradients into arenas, submits fusion buffers and ends steps. What happens rarely is done here, on a
thread of Shoal's own: after the first step the ranks agree on the order in which gradients lie; and where their gradients
differ, they find out how.
"""

import logging
import weakref
from collections.abc import Sequence

from shoal import _native
from shoal.gradients.arrangement import Arrangement, Kind
from shoal.gradients.arrival_order import ORDER, ArrivalOrder
from shoal.gradients.averaging import LAYOUT
from shoal.gradients.fusion_size import FusionSize
from shoal.gradients.layout import Item
from shoal.gradients.layout_statement import LayoutStatement
from shoal.gradients.named_operations import NamedOperations
from shoal.job.groups import Group
from shoal.ops import callbacks, doors
from shoal.ops.arrays import DTYPES
from shoal.ops.operations import OPERATORS

_log = logging.getLogger("shoal")


class NativeSteps:
    """``items``, ``dtypes``: by gradient, in the order in which they were made; they are expected to come from the last.

    ``number``: by which the framework's operations name it, as long as it lives.
    """

    def __init__(self, items: Sequence[Item], dtypes: Sequence[str], op: str, group: Group) -> None:
        self._items = items
        self._dtypes = dtypes
        self._operations = NamedOperations(group)
        self._order = ArrivalOrder()
        kinds = [Kind(0, dtype) for dtype in dtypes]
        total = sum(item.size for item in items)
        self._arrangement = Arrangement(items, kinds, range(len(items) - 1, -1, -1), FusionSize(group)(total))
        event = weakref.WeakMethod(self._see_to_events)

        def see_to_events() -> None:
            found = event()
            if found is not None:
                found()

        completions, token = callbacks.add_source(see_to_events)
        weakref.finalize(self, callbacks.remove_source, token).atexit = False
        prefix = self._operations.name("")[:-1]
        self._native = _native.GradientAverager(
            prefix, doors.number_of(group), OPERATORS[op], self._plan(), completions, token
        )
        self.number = self._native.number

    def _plan(self) -> _native.GradientPlan:
        arrangement = self._arrangement
        kinds = list(arrangement.orders)
        numbers = {kind: number for number, kind in enumerate(kinds)}
        self._statement = LayoutStatement(
            [
                f"{self._items[index].name}: {self._items[index].elements} of {self._dtypes[index]}"
                for index in arrangement.order
            ],
            [window.extent.size for window in arrangement.windows],
            find_unused=False,
            order_is_known=self._order.is_known,
        ).of_pass(not self._order.is_known)
        places = []
        for index, (extent, dtype) in enumerate(zip(arrangement.extents, self._dtypes, strict=True)):
            touched = arrangement.touched[index]
            first, end = (touched[0], touched[-1] + 1) if touched else (0, 0)
            places.append((numbers[Kind(0, dtype)], extent.begin, extent.size, first, end))
        return _native.GradientPlan(
            arenas=[(DTYPES[kind.dtype], arrangement.layouts[kind].size) for kind in kinds],
            places=places,
            buffers=[
                (window.label, numbers[window.kind], window.extent.begin, window.extent.end)
                for window in arrangement.windows
            ],
            votes=self._statement.votes.tolist(),
        )

    def _see_to_events(self) -> None:
        while (event := self._native.next_event()) is not None:
            if isinstance(event, tuple):
                self._learn_order(*event)
            else:
                self._explain(event)

    def _learn_order(self, well: bool, arrivals: list[int]) -> None:
        """The first step has ended: its order on the group's first member is that of all ranks."""
        plan = None
        try:
            if well:
                self._order.passed(arrivals)
                received = self._order.exchange(self._operations, self._arrangement, 0).received()
                self._arrangement = self._arrangement.reordered(received)
                self._order.looked(True)
                plan = self._plan()
            else:
                self._operations.fail(ORDER, "the step before it has failed")
        except RuntimeError as error:
            # As the step of another rank that has failed. The next step shows the order again.
            self._order.restart()
            _log.debug("%s: no order of the gradients: %s", self._operations.here, error)
        finally:
            self._native.arrange(plan)

    def _explain(self, step: _native.DisagreeingPass) -> None:
        labels = [window.label for window in self._arrangement.windows]
        how = "the ranks do not have the same gradients"
        try:
            error, everyones = self._statement.explain(self._operations, LAYOUT, "gradients", labels)
            how = str(error)
            for label in everyones.difference(labels):
                self._operations.fail(label, how)
        except RuntimeError as error:
            how = f"{how}, and not how they differ: {error}"
        finally:
            step.explain(how)
