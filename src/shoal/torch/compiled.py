"""``torch.compile`` and the wrapper: the module inside is compiled, the wrapper itself is not, as with PyTorch's own.

A compiled module has one backward graph, which hands over all gradients at its end, so nothing would overlap. PyTorch cuts
the graph wherever a bucket of its DistributedDataParallel would be full; it is told that ours is such a module.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame

from shoal.torch import versions

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type[Any])


def _marked(function: _Function, inside: str) -> _Function:
    # Where PyTorch is too old to be told, it compiles what it can.
    if versions.has("code can be skipped"):
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, getattr(action, inside))
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def untraced(function: _Function) -> _Function:
    """The function is not compiled, and neither is what it calls. (``torch.compiler.disable`` would import the compiler.)"""
    return _marked(function, "SKIP")


def untraced_class(cls: _Class) -> _Class:
    """Neither the methods of the class nor what they call are compiled.

    What PyTorch's own backends do is C++ to the compiler. Ours is Python, which it would translate wherever a compiled module calls it.
    """
    for method in vars(cls).values():
        if isinstance(method, FunctionType):
            untraced(method)
    return cls


def untraced_itself(function: _Function) -> _Function:
    """The function is not compiled, but what it calls is."""
    return _marked(function, "DEFAULT")


@untraced
def cut_at_buffers(wrapper: Any) -> Any:
    """What is compiled from now on is cut into graphs of ``wrapper.bucket_bytes_cap`` bytes of parameters.

    Returns what to give it to go back to what was before. Not a context manager, whose code would be compiled.
    """
    owner: Any = torch.nn.parallel.DistributedDataParallel
    before = getattr(owner, "_active_ddp_module", None)
    owner._active_ddp_module = wrapper
    return before
