"""Which gradients of an optimizer are those of all ranks already, so that they are not combined again where they are applied.

A tensor that was combined is known by itself. What the program makes of it, as where it clips, is found in a graph by what it
was computed of (origins.py). Eager tensors do not say that. So there a gradient counts as made of what was combined for its
variable last, as long as nothing was applied to the variable, and nothing has read it: a new pass would have.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, finalize, ref

import tensorflow as tf
from tensorflow.python.eager.record import VariableWatcher
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

from shoal.horovod.tensorflow.origins import Origin, Walk
from shoal.tensorflow import naming


class CombinedGradients:
    """Those of one optimizer. Eager, in functions, and in graphs of version 1."""

    def __init__(self) -> None:
        self._eager = _Eager()
        # By graphs, their tensors by name: whether what comes of them was applied.
        self._of_graphs: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
        # Of loops, in which something was applied that they carry from turn to turn.
        self._carrying: WeakSet[Any] = WeakSet()

    @tf.autograph.experimental.do_not_convert
    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """These have been combined. Returns whether they may be among those that were applied already: in a loop's next turn."""
        for gradient in gradients:
            graph = getattr(_values(gradient), "graph", None)
            if graph is not None:
                self._of_graphs.setdefault(graph, {})[_values(gradient).name] = False
        graph = naming.current_graph()
        if graph is None:
            self._eager.add(gradients, variables)
        return any(each in self._carrying for each in _around(graph))

    @tf.autograph.experimental.do_not_convert
    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Origin]:
        """Of gradients that are being applied, where they come from. What is applied to the variables next is new."""
        graph = naming.current_graph()
        if graph is None:
            return self._eager.apply(gradients, variables)
        tensors = [_values(gradient) for gradient in gradients]
        has_begun = bool(self._of_graphs) or self._eager.has_any()
        if not has_begun and not any(_carries(each, tensors) for each in _around(graph)):
            return [Origin.OWN] * len(gradients)
        walk = Walk(self._take)
        origins = [Origin.OWN if each is None else walk.origin(each) for each in tensors]
        self._carrying.update(walk.carried)
        return origins if has_begun else [Origin.OWN] * len(gradients)

    @tf.autograph.experimental.do_not_convert
    def has_elsewhere(self, variables: Iterable[Any]) -> bool:
        """Whether some were combined outside of the function that is traced, which combines none itself, and not applied there.

        ``variables``: of eager ones.
        """
        here = naming.current_graph()
        root = None if here is None else _around(here)[-1]
        roots = [(_around(graph)[-1], all(taken.values())) for graph, taken in self._of_graphs.items()]
        if here is not None and any(each is root for each, _ in roots):
            return False
        return (here is not None and self._eager.has(variables)) or not all(taken for _, taken in roots)

    def _take(self, tensor: Any) -> bool:
        graph = getattr(tensor, "graph", None)
        if graph is None:
            return self._eager.has_tensor(tensor)
        known = self._of_graphs.get(graph, {})
        if tensor.name not in known:
            return False
        known[tensor.name] = True
        return True


class _Eager:
    """What was combined eagerly."""

    def __init__(self) -> None:
        # As long as they live.
        self._tensors: WeakValueDictionary[int, Any] = WeakValueDictionary()
        # By id, which another one may have later. Those to which nothing was applied since.
        self._variables: dict[int, Any] = {}
        self._read: set[int] = set()
        self._watcher: VariableWatcher | None = None
        self._stop: Any = None

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        self._watch(False)
        for gradient, variable in zip(gradients, map(_underlying, variables), strict=True):
            if gradient is not None:
                self._tensors[id(gradient)] = gradient
                self._variables[id(variable)] = ref(variable)
                self._read.discard(id(variable))
        self._watch(bool(self._variables))

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Origin]:
        self._watch(False)
        origins = []
        for gradient, variable in zip(gradients, map(_underlying, variables), strict=True):
            if self.has_tensor(gradient):
                origins.append(Origin.COMBINED)
            elif self.has([variable]):
                origins.append(Origin.UNCERTAIN if id(variable) in self._read else Origin.COMBINED)
            else:
                origins.append(Origin.OWN)
        for variable in map(_underlying, variables):
            self._variables.pop(id(variable), None)
        self._watch(bool(self._variables))
        return origins

    def has(self, variables: Iterable[Any]) -> bool:
        known = ((self._variables.get(id(variable)), variable) for variable in map(_underlying, variables))
        return any(found is not None and found() is variable for found, variable in known)

    def has_any(self) -> bool:
        return bool(self._variables) or bool(self._tensors)

    def has_tensor(self, gradient: Any) -> bool:
        return gradient is not None and self._tensors.get(id(gradient)) is gradient

    def _watch(self, on: bool) -> None:
        """Notes which variables were read since the last call. ``on``: whether that goes on."""
        if self._watcher is not None:
            self._read.update(id(variable) for variable in self._watcher.watched_variables())
            self._stop()
            self._watcher = None
        if not on:
            return
        self._watcher = VariableWatcher().__enter__()
        self._stop = finalize(self, _stop, self._watcher, threading.get_ident())
        self._stop.atexit = False


def _stop(watcher: VariableWatcher, thread: int) -> None:
    # It is one of its thread's, which alone may take it away.
    if thread == threading.get_ident():
        watcher.__exit__(None, None, None)


def _around(graph: Any) -> list[Any]:
    """The graph; of a part of a function, then those that it is in."""
    graphs = [graph]
    while isinstance(graphs[-1], naming.PARTS):
        graphs.append(graphs[-1].outer_graph)
    return graphs


def _carries(graph: Any, gradients: list[Any]) -> bool:
    """Whether it is of a loop that carries something like one of these from turn to turn."""
    if not isinstance(graph, WhileBodyFuncGraph):
        return False
    captured = {id(inner) for _, inner in graph.captures}
    arguments = [each.outputs[0] for each in graph.get_operations() if each.type == "Placeholder"]
    carried = [each for each in arguments if each.dtype.is_floating and id(each) not in captured]
    return any(
        each.shape.is_compatible_with(other.shape) for each in carried for other in gradients if other is not None
    )


def _values(gradient: Any) -> Any:
    return getattr(gradient, "values", gradient) if hasattr(gradient, "dense_shape") else gradient


def _underlying(variable: Any) -> Any:
    """TensorFlow's variable, where Keras 3 has one of its own around it: a program may use both."""
    inner = getattr(variable, "_value", None)
    return variable if inner is None else inner
