"""``hvd.DistributedOptimizer`` with op=Adasum: each rank makes its own step, and Adasum combines the steps.

Maleki et al. (2021), section 4: what is combined is the change of the parameters by the program's optimizer, not the
gradient. A parameter's own step is made when its gradient is complete, and its change is on its way while backward goes on;
until ``step`` the parameter itself is as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.torch.allreduce import Reduction
from shoal.horovod.torch.parameter_hooks import HookedOptimizer, Parameter


class AdasumOptimizer(HookedOptimizer):
    """Made by ``DistributedOptimizer``. ``step`` waits for the combined changes, and adds them."""

    def prepare(self, compression: Any) -> None:
        """Before ``begin``."""
        self._compression = compression
        self._waits: dict[Parameter, Callable[[], torch.Tensor]] = {}

    def forget(self) -> None:
        super().forget()
        self._waits = {}

    def due(self, parameter: Parameter) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        travelling, context = self._compression.compress(self._own_change(parameter))
        name = self._parameter_names[parameter]
        started = Reduction(ReduceOp.Adasum, 1.0, 1.0, self.process_set).begin_(travelling, name)
        # Does not keep the optimizer, which keeps it.
        decompress = self._compression.decompress
        self._waits[parameter] = lambda: decompress(started.wait(), context)

    def synchronize(self) -> None:
        """Does nothing: what travels are changes, not gradients."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: with Adasum there are no averaged gradients before ``step``."""
        raise AssertionError(
            "skip_synchronize() has no meaning with Adasum, whose step() combines changes: leave it out"
        )
        yield

    def step(self, closure: Any = None) -> Any:
        """Adds the combined changes to the parameters. Raises HorovodInternalError."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            for parameter in self._required:
                if parameter not in self._waits:
                    self.due(parameter)
            first = None
            for parameter, wait in self._waits.items():
                try:
                    parameter.detach().add_(wait())
                except RuntimeError as error:
                    first = first or error
            if first is not None:
                raise first
        finally:
            self.forget()
        return loss

    # As in AveragingOptimizer: the hooks of steps run around the program's own, which is made for each parameter.
    step.hooked = True  # type: ignore[attr-defined]

    def _own_change(self, parameter: Parameter) -> torch.Tensor:
        """What the program's step on this parameter alone changes; the parameter is as before afterwards."""
        value = parameter.detach()
        before = value.clone()
        kept = [group["params"] for group in self.param_groups]
        for group, parameters in zip(self.param_groups, kept, strict=True):
            group["params"] = [parameter] if any(each is parameter for each in parameters) else []
        try:
            super().step()
        finally:
            for group, parameters in zip(self.param_groups, kept, strict=True):
                group["params"] = parameters
        change = value - before
        value.copy_(before)
        return change
