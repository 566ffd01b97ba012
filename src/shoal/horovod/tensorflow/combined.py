"""Which gradients of an optimizer are those of all ranks already, so that they are not combined again where they are applied.

A tensor that was combined is known by itself. What the program makes of it, as where it clips, is known by its variable: once
the gradient of a variable was combined, what is applied to the variable next comes of that.

A function that is traced has its own record, which goes with its graph: its trace may break off, or be done again. The parts of
its loops and branches have theirs, since each branch may apply what was combined before them, or combine what comes after them.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from shoal.tensorflow import naming


class _State(Enum):
    COMBINED = auto()  # here, or in an operation that is here
    COMBINED_IN_A_PART = auto()  # of a branch or loop that is here
    APPLIED_IN_A_PART = auto()  # other parts may apply it too


class _Record:
    """What has become of gradients in one graph, by their variables."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[Any, _State]] = {}

    def get(self, variable: Any) -> _State | None:
        # Another variable may have had this id.
        known, state = self._states.get(id(variable), (None, None))
        return state if known is not None and known() is variable else None

    def put(self, variable: Any, state: _State | None) -> None:
        if state is None:
            self._states.pop(id(variable), None)
        else:
            self._states[id(variable)] = (ref(variable), state)


class CombinedGradients:
    """Those of one optimizer. Eager, in functions, and in graphs of version 1."""

    def __init__(self) -> None:
        # As long as they live.
        self._tensors: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._eager = _Record()
        self._of_graphs: WeakKeyDictionary[Any, _Record] = WeakKeyDictionary()

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """These have been combined."""
        here, *around = self._records()
        for gradient, variable in zip(gradients, map(_underlying, variables), strict=True):
            if gradient is None:
                continue
            self._tensors[id(gradient)] = gradient
            here.put(variable, _State.COMBINED)
            for record in around:
                if record.get(variable) is not _State.COMBINED:
                    record.put(variable, _State.COMBINED_IN_A_PART)

    def has(self, gradient: Any, variable: Any) -> bool:
        """Whether this gradient of the variable was combined, or comes of one that was."""
        if self._tensors.get(id(gradient)) is gradient:
            return True
        variable = _underlying(variable)
        here, *around = (record.get(variable) for record in self._records())
        return here in (_State.COMBINED, _State.COMBINED_IN_A_PART) or any(around)

    def has_elsewhere(self, variables: Iterable[Any]) -> bool:
        """Whether gradients of one of these were combined outside of the function that is traced, and not applied there."""
        here = self._records()
        functions = (record for graph, record in self._of_graphs.items() if not isinstance(graph, naming.PARTS))
        others = [record for record in (self._eager, *functions) if record not in here]
        waiting = (_State.COMBINED, _State.COMBINED_IN_A_PART)
        return any(record.get(_underlying(variable)) in waiting for variable in variables for record in others)

    def applied(self, variables: Iterable[Any]) -> None:
        """Gradients of these are being applied: what comes next is new."""
        here, *around = self._records()
        for variable in map(_underlying, variables):
            was_here = here.get(variable) in (_State.COMBINED, _State.COMBINED_IN_A_PART)
            here.put(variable, None)
            for record in around:
                state = record.get(variable)
                if state is _State.COMBINED_IN_A_PART and was_here:
                    record.put(variable, None)
                elif state is not None:
                    record.put(variable, _State.APPLIED_IN_A_PART)

    def _records(self) -> list[_Record]:
        """That of the graph at hand; of a part of a function, then those of the graphs that it is in."""
        graph = naming.current_graph()
        if graph is None:
            return [self._eager]
        records = [self._of_graphs.setdefault(graph, _Record())]
        while isinstance(graph, naming.PARTS):
            graph = graph.outer_graph
            records.append(self._of_graphs.setdefault(graph, _Record()))
        return records


def _underlying(variable: Any) -> Any:
    """TensorFlow's variable, where Keras 3 has one of its own around it: a program may use both."""
    inner = getattr(variable, "_value", None)
    return variable if inner is None else inner
