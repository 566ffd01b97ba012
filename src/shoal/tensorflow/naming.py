"""Names of calls in functions, and the order of calls that have the same: alike on all ranks that trace the same functions,
each as often as it likes.

TensorFlow's own names have numbers in them that count all that a process has traced. Two calls in a function never have the
same name. But a function may be called several times in another one, and two functions may be called alike: calls of the
same name run in the program's order, since they share a resource, which TensorFlow takes for something that they change.
Those that XLA compiles have the same one (xla.py).
"""

import re
import threading
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)
from tensorflow.python.saved_model import save_context

PARTS = (CondBranchFuncGraph, WhileBodyFuncGraph, WhileCondFuncGraph)

_lock = threading.Lock()
# What has been named in a graph, and how often.
_calls: "WeakKeyDictionary[Any, Counter[tuple[str, str]]]" = WeakKeyDictionary()
# As long as a function uses them.
_orders: "WeakValueDictionary[str, Any]" = WeakValueDictionary()


def current_graph() -> Any:
    """That is being traced, or of TensorFlow 1; None when executing eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def name_of_call(kind: str, graph: Any) -> str:
    """The function's name, and which of its calls of this kind it is. The parts of loops and branches are their function's."""
    while isinstance(graph, PARTS):
        graph = graph.outer_graph
    number = _count(graph, ("kind", kind))
    return f"{name_of_function(graph)}.{kind}{number}"


def name_of_function(graph: Any) -> str:
    while isinstance(graph, PARTS):
        graph = graph.outer_graph
    return re.sub(r"_\d+", "", getattr(graph, "name", None) or "graph")


def numbered(name: str, graph: Any) -> str:
    """A name that the program has given, with a number behind it where the graph has it already."""
    number = _count(graph, ("name", name))
    return f"{name}_{number}" if number else name


def order_of(name: str, group: int, graph: Any) -> Any:
    """The resource that calls of this name share in this group, by the door's number. What XLA compiles alone reads it.

    Eager calls, for which ``graph`` is None, run in the program's order anyway.
    """
    key = "shoal" if graph is None else f"shoal {group} {name}"
    if graph is not None and save_context.in_save_context():
        return _resource_of_graph(key, graph)  # what is saved must not have one of this process
    with _lock, tf.init_scope():
        if not tf.executing_eagerly():
            # A graph of TensorFlow 1. What it has must not be kept elsewhere, since it has the graph.
            kept = tf.compat.v1.get_default_graph().get_collection_ref(key)
            if not kept:
                kept.append(_resource(key))
            return kept[0]
        order = _orders.get(key)
        if order is None:
            order = _orders[key] = _resource(key)
        return order


def made(result: Any, graph: Any) -> Any:
    """What an operation with such a resource gives. To be called for each.

    What builds functions' gradients orders nothing in them; so the end of such a function must be said to be after the operation.
    """
    if graph is not None and graph.building_function and not graph._add_control_dependencies:
        tensor = result if hasattr(result, "op") else result[0]
        graph.control_outputs.append(tensor.op)
    return result


def _resource_of_graph(key: str, graph: Any) -> Any:
    """One of a function's, which its loops and branches have, too; functions that it calls come one after the other anyway."""
    while isinstance(graph, PARTS):
        graph = graph.outer_graph
    kept = graph.get_collection_ref(key)
    if not kept:
        with graph.as_default():
            kept.append(_resource(key))
    return kept[0]


def _resource(name: str) -> Any:
    with tf.device("CPU:0"):
        return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=name)


def without_counters(name: str) -> str:
    """A variable's name, as every rank has it that has made the same model, whatever it has made before."""
    return re.sub(r"_\d+\b", "", name)


def _count(graph: Any, key: tuple[str, str]) -> int:
    """How often it was called before."""
    with _lock:
        calls = _calls.setdefault(graph, Counter())
        calls[key] += 1
        return calls[key] - 1
