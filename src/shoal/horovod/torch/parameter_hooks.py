"""What both distributed optimizers have: the parameters' names, when a gradient is due, and hooks that say so.

A hook is called when backward has accumulated a parameter's gradient. After ``backward_passes_per_step`` times it is due:
``start`` begins its operation, and backward goes on meanwhile. Names are the keys under which ranks match operations, so
that gradients may come in different orders.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from shoal.horovod.common.process_sets import ProcessSet

Parameter = torch.Tensor


def names_of(param_groups: list[dict[str, Any]], named_parameters: Iterable[Any] | None) -> dict[Parameter, str]:
    """Parameter → name. Raises ValueError if a name comes twice, or a parameter has none."""
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{group}.{place}"
            for group, options in enumerate(param_groups)
            for place, parameter in enumerate(options["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters are pairs of a name and a parameter: pass model.named_parameters()")
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise ValueError(
            f"named_parameters has names more than once: {', '.join(twice)}: put a prefix before those of each model, as "
            "model.named_parameters(prefix='encoder') does"
        )
    names = {parameter: name for name, parameter in pairs}
    unnamed = [
        f"parameter {place} of group {group}, of shape {list(parameter.shape)}"
        for group, options in enumerate(param_groups)
        for place, parameter in enumerate(options["params"])
        if parameter not in names
    ]
    if unnamed:
        raise ValueError(
            f"named_parameters lacks what the optimizer has: {'; '.join(unnamed)}: pass those of all models"
        )
    return names


class HookedOptimizer(torch.optim.Optimizer):
    """An optimizer of the program's with hooks on its parameters. Made by ``wrap``, which calls ``begin``.

    A class of this and of the program's own class stands in for it; ``super().step`` is the program's.
    """

    _due_in: dict[Parameter, int]
    _reached: set[Parameter]

    def begin(
        self, names: dict[Parameter, str], backward_passes_per_step: int, process_set: ProcessSet, communicates: bool
    ) -> None:
        """``communicates``: False: there is nobody to average with."""
        self._parameter_names = names
        self.process_set = process_set
        self._hooks: list[Any] = []
        self._required: list[Parameter] = []
        self.backward_passes_per_step = backward_passes_per_step
        self.forget()
        if not communicates:
            return
        hook = _hook_of(self)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._required.append(parameter)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From the next step on, gradients of so many backward passes add up before they are averaged."""
        self.backward_passes_per_step = passes

    def forget(self) -> None:
        """No gradient has been reached since the last step."""
        self._due_in = {}
        self._reached = set()

    def arrive(self, parameter: Parameter) -> None:
        """Backward has accumulated its gradient. Raises AssertionError, as Horovod does, if that is one pass too many."""
        name = self._parameter_names[parameter]
        due_in = self._due_in.get(parameter, self.backward_passes_per_step) - 1
        if due_in < 0:
            raise AssertionError(
                f"the gradient of {name} was computed more than backward_passes_per_step={self.backward_passes_per_step} times "
                "before step(): call step() earlier, or say a larger backward_passes_per_step"
            )
        if parameter.grad is not None and parameter.grad.requires_grad:
            raise AssertionError(
                f"the gradient of {name} has a graph of its own, which averaging would lose: leave out create_graph=True"
            )
        self._due_in[parameter] = due_in
        self._reached.add(parameter)
        if due_in == 0:
            self.due(parameter)

    def due(self, parameter: Parameter) -> None:
        """Its gradient is complete."""
        raise NotImplementedError

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the program's own. Raises AssertionError between backward and step, when gradients are on their way."""
        if self._reached:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() and before optimizer.step() or "
                "optimizer.synchronize(), while gradients are on their way: call it before loss.backward()"
            )
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the program's own. Gradients that are on their way count no more."""
        self.forget()
        super().load_state_dict(*args, **kwargs)


def wrap(optimizer: torch.optim.Optimizer, kind: type[HookedOptimizer]) -> Any:
    """An optimizer of ``kind`` with the options, the state and the class of ``optimizer``."""
    inner = type(optimizer)
    made_class = type(inner.__name__, (kind, inner), {"__module__": kind.__module__, "__doc__": inner.__doc__})
    made: Any = object.__new__(made_class)
    # A scheduler puts a step of its own there, which would be called instead of this one's.
    made.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    return made


def _hook_of(optimizer: HookedOptimizer) -> Callable[[Parameter], None]:
    """A hook that does not keep the optimizer alive, and does nothing once that is gone."""
    reference = weakref.ref(optimizer)

    def hook(parameter: Parameter) -> None:
        found = reference()
        if found is not None:
            found.arrive(parameter)

    return hook
