"""What the gradients of a graph come of, by data flow: of some that were combined, or of the program's own.

A walk goes back from a gradient through operations' inputs. A loop, a branch or a function that is called has a graph of its own,
into which the walk goes by its results, and comes out by its arguments. What a graph that is being traced has captured is
followed to the graphs around it.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

# Of tensors. A program that has more is not followed further.
LIMIT = 500_000


class Origin(Enum):
    """Of a gradient."""

    CONSTANT = auto()  # of constants alone, as zeros that stand for it where there is none
    OWN = auto()
    UNCERTAIN = auto()  # in one branch of the program it is combined, in another one not; or that cannot be told
    COMBINED = auto()


# Operations whose results have none of their inputs' values.
_CONSTANTS = ("Const", "ZerosLike", "OnesLike", "Shape", "ShapeN", "Size", "Rank")
# Operations with graphs of their own: the attributes that name these, and how many inputs are none of the graphs'.
_IF, _CASE, _WHILE, _CALL = (("then_branch", "else_branch"), 1), (("branches",), 1), (("body",), 0), (("f",), 0)
_WITH_GRAPHS = {
    "If": _IF,
    "StatelessIf": _IF,
    "Case": _CASE,
    "StatelessCase": _CASE,
    "While": _WHILE,
    "StatelessWhile": _WHILE,
    "PartitionedCall": _CALL,
    "StatefulPartitionedCall": _CALL,
}


class _Inside(NamedTuple):
    """Where the walk is: in a graph of this operation, whose inputs from ``first`` on are the graph's. None: where tracing is."""

    operation: Any
    graph: Any
    first: int
    outside: "_Inside | None"


class _Node(NamedTuple):
    tensor: Any
    inside: _Inside | None


_Merged = Callable[[list[Origin]], Origin]
# An origin, if it is known at once; or else what it comes of, and how.
_Sources = tuple[Origin | None, _Merged, list[_Node]]


class Walk:
    """Finds origins. Of several gradients with one walk, since they have most in common.

    ``is_combined``: of a tensor, which is asked once. ``carried``: the graphs of those loops whose traces are not done yet, and
    that carry what a gradient comes of; what that will be cannot be known then.
    """

    def __init__(self, is_combined: Callable[[Any], bool]) -> None:
        self._is_combined = is_combined
        self._found: dict[Any, Origin | None] = {}
        self._insides: dict[Any, _Inside] = {}
        self.carried: list[Any] = []

    def origin(self, gradient: Any) -> Origin:
        """That of a tensor of a graph."""
        start = _Node(gradient, None)
        ways: list[tuple[Any, _Merged, list[_Node], Iterator[_Node]]] = []
        self._enter(start, ways)
        while ways:
            key, merged, nodes, left = ways[-1]
            node = next(left, None)
            if node is not None:
                self._enter(node, ways)
                continue
            ways.pop()
            # What is being looked at has come round a loop, and says nothing of itself.
            self._found[key] = merged([self._found[_key(each)] or Origin.CONSTANT for each in nodes])
        return self._found[_key(start)] or Origin.CONSTANT

    def _enter(self, node: _Node, ways: list[Any]) -> None:
        key = _key(node)
        if key in self._found:
            return
        known, merged, nodes = self._sources(node)
        self._found[key] = known
        if known is None:
            ways.append((key, merged, nodes, iter(nodes)))

    def _sources(self, node: _Node) -> _Sources:
        tensor, inside = node
        graph = getattr(tensor, "graph", None)  # an eager one, which is captured, has none
        if self._is_combined(tensor):
            return Origin.COMBINED, _of_all, []
        if graph is None:
            return Origin.OWN, _of_all, []
        if len(self._found) > LIMIT:
            return Origin.UNCERTAIN, _of_all, []
        operation = tensor.op
        if operation.type in _CONSTANTS:
            return Origin.CONSTANT, _of_all, []
        if operation.type == "Placeholder":
            return self._of_argument(node, graph)
        nodes = self._of_graphs(node) if operation.type in _WITH_GRAPHS else []
        if nodes:
            return None, _of_one, nodes
        nodes = [_Node(each, inside) for each in operation.inputs if each.dtype != tf.resource]
        return (None, _of_all, nodes) if nodes else (Origin.OWN, _of_all, [])

    def _of_argument(self, node: _Node, graph: Any) -> _Sources:
        tensor, inside = node
        if inside is not None:
            index = next((index for index, each in enumerate(inside.graph.inputs) if each is tensor), None)
            if index is None or inside.first + index >= len(inside.operation.inputs):
                return Origin.OWN, _of_all, []
            nodes = [_Node(inside.operation.inputs[inside.first + index], inside.outside)]
            if _WITH_GRAPHS[inside.operation.type] is _WHILE:
                nodes.append(_Node(graph.outputs[index], inside))
            return None, _of_one, nodes
        for outer, inner in getattr(graph, "captures", ()):
            if inner is tensor:
                return None, _of_one, [_Node(outer, None)]
        if isinstance(graph, WhileBodyFuncGraph) and tensor.dtype.is_floating:
            self.carried.append(graph)
            return Origin.UNCERTAIN, _of_all, []
        return Origin.OWN, _of_all, []

    def _of_graphs(self, node: _Node) -> list[_Node]:
        """What the operation's result is in its graphs; nothing if they are not known."""
        operation, index = node.tensor.op, node.tensor.value_index
        attributes, first = _WITH_GRAPHS[operation.type]
        nodes = []
        for name in _names(operation, attributes):
            graph = _graph_of(name, operation.graph)
            if graph is None or index >= len(graph.outputs):
                return []
            inside = _Inside(operation, graph, first, node.inside)
            inside = self._insides.setdefault((id(operation), name, id(node.inside)), inside)
            nodes.append(_Node(graph.outputs[index], inside))
        if attributes == _WHILE[0]:  # that of no turn
            nodes.append(_Node(operation.inputs[index], node.inside))
        return nodes


def _key(node: _Node) -> Any:
    return id(node.inside), id(node.tensor)


def _names(operation: Any, attributes: Sequence[str]) -> list[str]:
    values = [operation.get_attr(attribute) for attribute in attributes]
    return [each.name for value in values for each in (value if isinstance(value, list) else [value])]


def _graph_of(name: str, graph: Any) -> Any:
    """That of a function by its name, which this graph has or one around it."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return getattr(function, "graph", None)
        graph = getattr(graph, "outer_graph", None)
    return None


def _of_all(origins: list[Origin]) -> Origin:
    """Of what is computed of all of these."""
    return max(origins, key=lambda origin: origin.value, default=Origin.OWN)


def _of_one(origins: list[Origin]) -> Origin:
    """Of what is one of these."""
    different = {*origins} - {Origin.CONSTANT}
    if len(different) > 1:
        return Origin.UNCERTAIN
    return different.pop() if different else Origin.CONSTANT
