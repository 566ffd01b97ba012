"""Names of calls in functions: the same on all ranks that trace the same functions, each as often as it likes.

TensorFlow's own names have numbers in them that count all that a process has traced. Two calls in a function never have the
same name, so that they cannot be taken for each other where one rank comes to the second one first.
"""

import re
import threading
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)

PARTS = (CondBranchFuncGraph, WhileBodyFuncGraph, WhileCondFuncGraph)

_lock = threading.Lock()
_calls: "WeakKeyDictionary[Any, Counter[str]]" = WeakKeyDictionary()
_last: "WeakKeyDictionary[Any, dict[str, Any]]" = WeakKeyDictionary()


def current_graph() -> Any:
    """That is being traced, or of TensorFlow 1; None when executing eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def name_of_call(kind: str, graph: Any) -> str:
    """The function's name, and which of its calls of this kind it is. The parts of loops and branches are their function's."""
    while isinstance(graph, PARTS):
        graph = graph.outer_graph
    with _lock:
        calls = _calls.setdefault(graph, Counter())
        number = calls[kind]
        calls[kind] += 1
    function = re.sub(r"_\d+", "", getattr(graph, "name", None) or "graph")
    return f"{function}.{kind}{number}"


def after_the_last(name: str, graph: Any) -> Any:
    """A context in which the graph's next call of this name, which the program has given, comes after the one before."""
    last = _last.get(graph, {}).get(name)
    return graph.control_dependencies([] if last is None else [last])


def note_last(name: str, graph: Any, result: Any) -> None:
    tensor = result if hasattr(result, "op") else result[0]
    with _lock:
        _last.setdefault(graph, {})[name] = tensor.op


def without_counters(name: str) -> str:
    """A variable's name, as every rank has it that has made the same model, whatever it has made before."""
    return re.sub(r"_\d+\b", "", name)
