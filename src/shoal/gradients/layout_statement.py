"""What the ranks compare about their gradients in each pass: which there are, where they lie, and what follows the pass."""

from collections.abc import Sequence

from shoal.gradients.agreement import Statement


class LayoutStatement:
    """``lines``: by gradient, in the order in which they lie. ``buffers``: the bytes of each.

    ``find_unused``: whether gradients may be missing. ``order_is_known``: whether they lie in the order in which they
    arrive. ``wire``: how they travel, if not as they are.
    """

    def __init__(
        self, lines: Sequence[str], buffers: Sequence[int], *, find_unused: bool, order_is_known: bool, wire: str = ""
    ) -> None:
        self._lines = lines
        self._known = "in arrival order" if order_is_known else "before the first pass"
        travels = f", wire_dtype={wire}" if wire else ""
        self._rest = f"find_unused_parameters={find_unused}{travels}, buffers={list(buffers)}"
        self._statements = [Statement([self._header(due), *lines]) for due in (False, True)]

    def of_pass(self, order_is_due: bool, added: Sequence[str] = ()) -> Statement:
        """``order_is_due``: whether the ranks exchange the order after this pass. ``added``: more lines to agree on."""
        if added:
            return Statement([self._header(order_is_due), *self._lines, *added])
        return self._statements[order_is_due]

    def _header(self, order_is_due: bool) -> str:
        due = ", whose order is looked at after this pass" if order_is_due else ""
        return f"{len(self._lines)} parameters {self._known}{due}, {self._rest}"
