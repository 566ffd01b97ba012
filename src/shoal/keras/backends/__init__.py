"""The mean of gradients over the ranks, by Keras's backend: a module for each, of which the backend's alone is imported.

Each has ``average(gradients, names, op, group, sparse_as_dense)``: eager, and in whatever the backend traces or compiles.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar

import keras
import numpy as np

from shoal.job.groups import Group
from shoal.ops import collectives
from shoal.ops.handles import Handle

_F = TypeVar("_F", bound=Callable[..., Any])

KNOWN = ("tensorflow", "torch", "jax")


class Average(Protocol):
    def __call__(
        self, gradients: Sequence[Any], names: Sequence[str], op: str, group: Group | None, sparse_as_dense: bool
    ) -> list[Any]:
        """Each gradient combined with those of its name on the other ranks. None stays None, and is an error on all ranks where
        another has a gradient.

        ``gradients``: the backend's tensors, which may be overwritten, or None. ``names``: unique, and the same ones on every rank.
        ``op``: of ``shoal.allreduce``. ``sparse_as_dense``: sparse ones are made dense first, which PyTorch's are in any case.
        """


def average() -> Average:
    """That of Keras's backend. Raises NotImplementedError for one that has none."""
    name = keras.backend.backend()
    if name not in KNOWN:
        raise NotImplementedError(
            f"Keras's backend {name!r} does not train, or Shoal does not know it: set KERAS_BACKEND to one of {', '.join(KNOWN)}"
        )
    of_backend: Average = import_module(f"shoal.keras.backends.{name}").average
    return of_backend


def compares_each_step() -> bool:
    """Whether ``average`` finds out before anything else that ranks have different gradients."""
    return bool(keras.backend.backend() == "tensorflow")


def absent(name: str, group: Group | None) -> Handle:
    """What a rank calls, under the name of a gradient that is None. Where all ranks do, nothing comes of it; a rank that has one
    disagrees, and all of them hear that."""
    return collectives.allreduce_async(np.zeros(0, np.uint8), "max", name, group)


def untraced(function: _F) -> _F:
    """For what torch.compile is to run as it is. The other compilers only see what it gives the backend to do."""
    if keras.backend.backend() != "torch":
        return function
    run_as_it_is: _F = import_module("torch").compiler.disable(function)
    return run_as_it_is
