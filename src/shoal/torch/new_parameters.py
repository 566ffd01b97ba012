"""Parameters that a module has got since it was wrapped: whether they have the same values on all ranks.

Those that were there then began with the same values and have had the same gradients since. A new one comes from each rank's
own program; with other values on each, the ranks would go on to train different models. Until the first pass with it has
ended well, its values are a part of what the ranks compare in each pass.
"""

import hashlib
import weakref
from collections.abc import Iterable, Sequence

import torch

from shoal.torch.arena import NamedParameter

DIGEST_BYTES = 8


class KnownParameters:
    """Those that are the same on all ranks: ``parameters``, and what is learned."""

    def __init__(self, parameters: Iterable[NamedParameter]) -> None:
        # By identity: a number may come again when its parameter is gone.
        self._known: dict[int, weakref.ref[torch.nn.Parameter]] = {}
        self.learn(parameters)

    def learn(self, parameters: Iterable[NamedParameter]) -> None:
        self._known.update((id(parameter), weakref.ref(parameter)) for _, parameter in parameters)

    def unknown_of(self, parameters: Iterable[NamedParameter]) -> list[NamedParameter]:
        return [(name, parameter) for name, parameter in parameters if not self._is_known(parameter)]

    def _is_known(self, parameter: torch.nn.Parameter) -> bool:
        reference = self._known.get(id(parameter))
        return reference is not None and reference() is parameter


def describe_values(parameters: Sequence[NamedParameter]) -> list[str]:
    """A line for each that all ranks must agree on."""
    return [
        f"{name}: new since the module was wrapped, its values (digest {_digest(parameter)}) must be the same on all ranks"
        for name, parameter in parameters
    ]


def _digest(parameter: torch.nn.Parameter) -> str:
    values = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.blake2b(values, digest_size=DIGEST_BYTES).hexdigest()
