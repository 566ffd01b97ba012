"""Classes that ``torch.compile`` leaves alone.

What PyTorch's own backends do is C++ to it. Ours is Python, which it would translate wherever a compiled module calls it, such
as DistributedDataParallel. ``torch.compiler.disable`` says the same, but imports the compiler, which takes seconds.
"""

from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

_Class = TypeVar("_Class", bound=type[Any])


def untraced(cls: _Class) -> _Class:
    """Neither the methods of the class nor what they call are compiled."""
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    for method in vars(cls).values():
        if isinstance(method, FunctionType):
            eval_frame.set_code_exec_strategy(method.__code__, skip)
    return cls
