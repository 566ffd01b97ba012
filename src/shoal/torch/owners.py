"""Which parameters several wrappers of this process have: a shared encoder, a module that is wrapped twice.

A wrapper may go in a garbage collection, in the midst of anything that this thread or another does here. So what it says then waits
for nobody: whoever has the lock counts for it.
"""

import threading
from collections import deque
from collections.abc import Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

_lock = threading.Lock()
_owners: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter → how many wrappers have it; guarded by _lock
_uncounted: deque[tuple[Sequence[torch.nn.Parameter], int]] = deque()
_changes = 0


def add(parameters: Sequence[torch.nn.Parameter]) -> None:
    """One more wrapper has these."""
    with _lock:
        _uncounted.append((parameters, 1))
        _count()
    _count_if_nobody_does()


def remove(parameters: Sequence[torch.nn.Parameter]) -> None:
    """A wrapper that had these has them no more. Never waits."""
    _uncounted.append((parameters, -1))
    _count_if_nobody_does()


def changes() -> int:
    """A number that changes whenever ``shared`` may answer otherwise."""
    return _changes


def shared(parameters: Sequence[torch.nn.Parameter]) -> frozenset[int]:
    """The indices of those that more than one wrapper has."""
    with _lock:
        _count()
        found = frozenset(index for index, each in enumerate(parameters) if _owners.get(each, 0) > 1)  # type: ignore[no-untyped-call]
    _count_if_nobody_does()
    return found


def _count_if_nobody_does() -> None:
    # What comes in while somebody counts, he or we find afterwards.
    while _uncounted and _lock.acquire(blocking=False):
        try:
            _count()
        finally:
            _lock.release()


def _count() -> None:
    global _changes
    while _uncounted:
        parameters, more = _uncounted.popleft()
        _changes += 1
        for parameter in parameters:
            count = _owners.get(parameter, 0) + more  # type: ignore[no-untyped-call]
            if count:
                _owners[parameter] = count
            else:
                # A weak reference keeps a tensor from being swapped with another (torch.utils.swap_tensors).
                del _owners[parameter]
