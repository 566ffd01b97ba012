"""Which parameters several wrappers of this process have: a shared encoder, a module that is wrapped twice."""

import threading
from collections.abc import Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

_lock = threading.Lock()
_owners: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter → how many wrappers have it; guarded by _lock
_changes = 0


def add(parameters: Sequence[torch.nn.Parameter]) -> None:
    """One more wrapper has these."""
    _count(parameters, 1)


def remove(parameters: Sequence[torch.nn.Parameter]) -> None:
    """A wrapper that had these has them no more."""
    _count(parameters, -1)


def changes() -> int:
    """A number that changes whenever ``shared`` may answer otherwise."""
    return _changes


def shared(parameters: Sequence[torch.nn.Parameter]) -> frozenset[int]:
    """The indices of those that more than one wrapper has."""
    with _lock:
        return frozenset(index for index, each in enumerate(parameters) if _owners.get(each, 0) > 1)  # type: ignore[no-untyped-call]


def _count(parameters: Sequence[torch.nn.Parameter], more: int) -> None:
    global _changes
    with _lock:
        _changes += 1
        for parameter in parameters:
            count = _owners.get(parameter, 0) + more  # type: ignore[no-untyped-call]
            if count:
                _owners[parameter] = count
            else:
                # A weak reference keeps a tensor from being swapped with another (torch.utils.swap_tensors).
                del _owners[parameter]
