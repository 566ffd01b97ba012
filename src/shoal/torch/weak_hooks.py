"""Hooks on tensors and on nodes of the graph that do not keep whom they call alive."""

import weakref
from collections.abc import Callable
from typing import Any


def weakly(call: Callable[..., None], owner: Any, *arguments: object) -> Callable[..., None]:
    """Calls ``call(owner, *arguments)`` as long as the owner lives. What the hook itself is given is left out."""
    reference = weakref.ref(owner)

    def hook(*_: object) -> None:
        found = reference()
        if found is not None:
            call(found, *arguments)

    return hook
