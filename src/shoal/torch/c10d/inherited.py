"""Process groups in a forked child, which is no rank.

What a process group keeps of PyTorch's own does not survive a fork: the threads of its gloo group and of the store do not exist in
the child, and whoever destroys these waits for them, or ends the process. So a child neither uses nor destroys them. Its
process groups refuse every operation with one clear error, and can be destroyed: that lets go of them.
"""

import ctypes
import os
from typing import Any
from weakref import WeakSet

from shoal.errors import ShoalError

_groups: "WeakSet[Any]" = WeakSet()
# Those by class, made in a child.
_inherited_classes: dict[type[Any], type[Any]] = {}

# What needs no other rank; beside these, whatever begins with an underscore and is not among the next.
_HARMLESS = frozenset({"boxed", "get_group_store", "getBackendName", "name", "rank", "set_timeout", "size", "unbox"})
_OPERATIONS = frozenset({"_allgather_base", "_reduce_scatter_base", "_start_coalescing"})


def watch(group: Any) -> None:
    """``group``: a process group of Shoal's, complete, with its gloo group as ``_gloo``, its store as ``_store`` and what sends by them as ``_messages``."""
    _groups.add(group)


def _inherited(kind: type[Any]) -> type[Any]:
    """The class of a process group in the child: every method that would start something refuses."""
    if kind not in _inherited_classes:
        operations = {name: _refuse for name in dir(kind) if _starts_something(kind, name)}
        own: dict[str, Any] = {**operations, "shutdown": _let_go, "abort": _let_go}
        _inherited_classes[kind] = type(f"Inherited{kind.__name__}", (kind,), own)
    return _inherited_classes[kind]


def _starts_something(kind: type[Any], name: str) -> bool:
    method = getattr(kind, name)
    if name in _HARMLESS or isinstance(method, type) or not callable(method):
        return False
    return name in _OPERATIONS or not name.startswith("_")


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise ShoalError(
        f"this process was forked from rank {self.rank()} of a process group and is not a rank itself: what it has inherited "
        "cannot be used here. Use it in the parent only, or destroy_process_group() here and start a job of this process's own"
    )


def _let_go(self: Any, *args: Any, **kwargs: Any) -> None:
    """Nothing of it is this process's to end."""


def _keep(thing: Any) -> None:
    """Nothing destroys it, not even the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _inherit() -> None:
    for group in list(_groups):
        _keep(group._gloo)
        _keep(group._store)
        _keep(group._messages)
        group.__class__ = _inherited(type(group))
    _groups.clear()


os.register_at_fork(after_in_child=_inherit)
