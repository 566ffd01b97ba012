"""Names of calls in functions: the same on all ranks that trace the same functions, each as often as it likes.

TensorFlow's own names have numbers in them that count all that a process has traced.
"""

import re
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)

_PARTS = (CondBranchFuncGraph, WhileBodyFuncGraph, WhileCondFuncGraph)

_calls: "WeakKeyDictionary[Any, Counter[str]]" = WeakKeyDictionary()


def name_of_call(kind: str, graph: Any) -> str:
    """The function's name, and which of its calls of this kind it is. The parts of loops and branches are their function's."""
    while isinstance(graph, _PARTS):
        graph = graph.outer_graph
    calls = _calls.setdefault(graph, Counter())
    number = calls[kind]
    calls[kind] += 1
    function = re.sub(r"_\d+$", "", getattr(graph, "name", None) or "graph")
    return f"{function}.{kind}{number}"
