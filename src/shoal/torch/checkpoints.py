"""A wrapper's ``state_dict``: with PyTorch's names, and read with them or with those of the module inside.

The names that are written begin with "module.", as with PyTorch's own wrapper, so that files go from one to the other.
Those of a module that was never wrapped do not, and can be loaded all the same.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

PREFIX = "module."


def with_prefix(state: Mapping[str, Any], module: torch.nn.Module) -> Mapping[str, Any]:
    """``state`` with the wrapper's names. ``module``: the one inside.

    A name like "module.weight" may be the wrapper's, or of a module that has a part called module itself: the reading by
    which more names are those of ``module`` counts.
    """
    known = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    as_they_are = sum(name in known for name in state)
    without = sum(name.startswith(PREFIX) and name.removeprefix(PREFIX) in known for name in state)
    if as_they_are <= without:
        return state
    named = OrderedDict((PREFIX + name, value) for name, value in state.items())
    metadata: Mapping[str, Any] | None = getattr(state, "_metadata", None)
    if metadata is not None:
        # Versions of the parts, by their paths; "" is the module itself.
        named._metadata = {(PREFIX + path).rstrip("."): each for path, each in metadata.items()}  # type: ignore[attr-defined]
    return named
