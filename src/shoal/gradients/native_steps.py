"""Averages the gradients of one model for a framework whose operations bring them from C++ (native/doors/averager.h).

Native code copies gradients into arenas, submits fusion buffers and ends steps. What happens rarely is done here, on a
thread of Shoal's own: after the first step the ranks agree on the order in which gradients lie; and where their gradients
differ, they find out how.
"""

import hashlib
import logging
import weakref
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from shoal import _native
from shoal.gradients.agreement import Statement
from shoal.gradients.arrangement import Arrangement, Kind
from shoal.gradients.arrival_order import ORDER, ArrivalOrder
from shoal.gradients.averaging import LAYOUT
from shoal.gradients.fusion_size import FusionSize
from shoal.gradients.layout import Item
from shoal.gradients.named_operations import NamedOperations
from shoal.job.groups import Group
from shoal.ops import callbacks, doors
from shoal.ops.arrays import DTYPES
from shoal.ops.operations import OPERATORS

_log = logging.getLogger("shoal")


class Gradient(NamedTuple):
    """What all ranks have to have alike. ``travels``: in fusion buffers; otherwise it is only compared."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    travels: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} {list(self.shape)}" if self.travels else f"{self.name}: {self.dtype}"


class NativeSteps:
    """``place``: where in the program these gradients are averaged, the same on every rank: there ranks meet, whatever
    gradients they have. ``gradients``: in the order in which they were made; they are expected to come from the last.

    ``number``: by which the framework's operations name it, as long as it lives. ``name``: of these gradients at this place.
    """

    def __init__(self, place: str, gradients: Sequence[Gradient], op: str, group: Group) -> None:
        self._lines = [str(gradient) for gradient in gradients]
        self._others_follow = any(not gradient.travels for gradient in gradients)
        travelling = [gradient for gradient in gradients if gradient.travels]
        self._items = items = [Item(each.name, prod(each.shape), each.itemsize) for each in travelling]
        self._dtypes = dtypes = [each.dtype for each in travelling]
        # Other gradients at the same place have buffers of other names.
        digest = hashlib.sha256("\n".join([op, *self._lines]).encode()).hexdigest()[:8]
        self._label = f"{digest}."
        self.place = place
        self.name = f"{place}.{digest}"
        self._op = op
        self._operations = NamedOperations(group, prefix=place)
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
        self._native = _native.GradientAverager(
            place, doors.number_in_job(group), OPERATORS[op], self._plan(), completions, token
        )
        self.number = self._native.number

    def let_memory_go(self) -> None:
        """Whoever used it may have gone; the next step takes memory again."""
        self._native.let_memory_go()

    def _plan(self) -> _native.GradientPlan:
        arrangement = self._arrangement
        kinds = list(arrangement.orders)
        numbers = {kind: number for number, kind in enumerate(kinds)}
        sizes = [window.extent.size for window in arrangement.windows]
        self._statement = Statement(
            [*self._lines, f"op={self._op}", f"gradients in the order {arrangement.order}", f"buffers of {sizes} bytes"]
        )
        places = []
        for index, (extent, dtype) in enumerate(zip(arrangement.extents, self._dtypes, strict=True)):
            touched = arrangement.touched[index]
            first, end = (touched[0], touched[-1] + 1) if touched else (0, 0)
            places.append((numbers[Kind(0, dtype)], extent.begin, extent.size, first, end))
        return _native.GradientPlan(
            arenas=[(DTYPES[kind.dtype], arrangement.layouts[kind].size) for kind in kinds],
            places=places,
            buffers=[
                (self._label + window.label, numbers[window.kind], window.extent.begin, window.extent.end)
                for window in arrangement.windows
            ],
            votes=self._statement.votes.tolist(),
            end_label=f"{self._label}end" if self._others_follow else "",
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
                received = self._order.exchange(self._operations, self._arrangement, 0, self._label).received()
                self._arrangement = self._arrangement.reordered(received)
                self._order.looked(True)
                plan = self._plan()
            else:
                self._operations.fail(self._label + ORDER, "the step before it has failed")
        except RuntimeError as error:
            # As the step of another rank that has failed. The next step shows the order again.
            self._order.restart()
            _log.debug("%s: no order of the gradients: %s", self._operations.here, error)
        finally:
            self._native.arrange(plan)

    def _explain(self, step: _native.DisagreeingPass) -> None:
        labels = [self._label + window.label for window in self._arrangement.windows]
        if self._others_follow:
            labels.append(f"{self._label}end")
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
