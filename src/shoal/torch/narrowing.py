"""Gradients that travel in fewer bits than they have.

Every rank rounds its gradients once, to nearest, whoever averages them, so the number of servers changes no bit of the
result. Sums are float32's (native/reduce), and the mean is rounded once more. Then it is widened again.

With error feedback a rank adds what rounding has taken from a gradient to its next one (Seide et al., "1-Bit Stochastic
Gradient Descent", Interspeech 2014, section 3; Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019). So
what a rank contributes comes late, and is not lost, unless the program drops the mean: in steps in which no rank used a
parameter, or which GradScaler skips. That takes as much memory as the gradients.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

Narrow = Callable[[torch.Tensor, torch.Tensor], None]
"""Rounds the elements of the first tensor into the second, of the same device."""


class WireFormat(NamedTuple):
    """``dtype``: in which float32 gradients travel; None: as they are."""

    dtype: torch.dtype | None = None
    error_feedback: bool = False

    def travels_as(self, dtype: torch.dtype) -> torch.dtype:
        """``dtype``: that of the sum. Complex gradients count as float32, too."""
        return self.dtype if self.dtype is not None and dtype == torch.float32 else dtype

    def __str__(self) -> str:
        if self.dtype is None:
            return ""
        return f"{self.dtype}{' with error feedback' if self.error_feedback else ''}"


AS_THEY_ARE = WireFormat()


def checked(dtype: torch.dtype | None, error_feedback: bool) -> WireFormat:
    """Raises ValueError for a format that does not exist."""
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"wire_dtype is torch.bfloat16 or None, got {dtype!r}")
    if error_feedback and dtype is None:
        raise ValueError("error_feedback=True is for wire_dtype=torch.bfloat16: nothing else is rounded")
    return WireFormat(dtype, error_feedback)


class Narrowing:
    """What rounding has taken from the gradients, by buffer, where that is kept."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._taken: dict[str, torch.Tensor] = {}

    def forget(self) -> None:
        """Gradients lie elsewhere from now on, or others do."""
        self._taken.clear()

    def of_buffer(self, label: str) -> Narrow:
        """How its gradients are rounded in this pass."""
        return (lambda values, into: self._round(label, values, into)) if self._keeps else _round

    def _round(self, label: str, values: torch.Tensor, into: torch.Tensor) -> None:
        taken = self._taken.get(label)
        if taken is None:
            self._taken[label] = taken = torch.zeros_like(values)
        values.add_(taken)
        into.copy_(values)
        torch.sub(values, into, out=taken)
        # GradScaler makes nothing of a step with infinities, and scales the next one otherwise. Without waiting for a
        # device.
        is_finite = taken.isfinite().all()
        taken.nan_to_num_(0, 0, 0).mul_(is_finite)


def _round(values: torch.Tensor, into: torch.Tensor) -> None:
    into.copy_(values)
