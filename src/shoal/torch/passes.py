"""Backward passes that several wrappers have in common, as those of two heads on one encoder.

Each wrapper has a callback for the end of a pass, and they come in the order in which the wrappers have joined it, which may be
another on another rank. So the first of them lets all submit what is open before any waits, and the last waits for what the others
have asked for at their end.
"""

import threading
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from shoal.torch import graph


class Participant(Protocol):
    def submit_rest(self) -> None:
        """All gradients of the pass are there, or will not come."""

    def catch_up(self, waits: bool) -> None:
        """What is left of the end of its pass: calls what the other ranks wait for, or, where that is called, ``waits`` for it.

        Raises nothing that goes wrong in it.
        """


_lock = threading.Lock()
_on: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # who takes part → its pass; guarded by _lock
_owing: WeakSet[Any] = WeakSet()  # whose end of a pass is not complete; guarded by _lock


def join(participant: Participant) -> None:
    """It takes part in the pass that this thread is in."""
    with _lock:
        _on[participant] = graph.current_pass()


def leave(participant: Participant) -> bool:
    """Whether it was the last one in its pass."""
    with _lock:
        number = _on.pop(participant, None)
        return all(other != number for other in _on.values())


def all_submit_rest(participant: Participant) -> None:
    """The pass of this one has come to its end, and so has everyone's who takes part in it."""
    with _lock:
        number = _on.get(participant)
        together = [other for other, its in _on.items() if its == number]
    for each in together:
        each.submit_rest()


def owe(participant: Participant) -> None:
    """The end of its pass was interrupted, and the other ranks go on to it. Or its last step is to wait for other wrappers' ends."""
    with _lock:
        _owing.add(participant)


def all_catch_up() -> None:
    """Whoever owes something does it: all call before any waits, since on another rank others may have called already."""
    if not _owing:
        return
    with _lock:
        owing = list(_owing)
    for waits in (False, True):
        for each in owing:
            each.catch_up(waits)
    with _lock:
        _owing.difference_update(owing)
