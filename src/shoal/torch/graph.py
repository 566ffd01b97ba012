"""What PyTorch's autograd tells: the tensors of an output, and which parameters a backward pass will reach."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of a module's output: in tuples, lists, mappings and dataclasses, however nested."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (list, tuple, set, frozenset)):
        for value in output:
            yield from tensors_in(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from tensors_in(getattr(output, field.name))


def unchanged(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Inside, the tensor may be written without autograd taking it for another."""
    kept: AbstractContextManager[None] = torch.autograd._unsafe_preserve_version_counter(tensor)  # type: ignore[attr-defined]
    return kept


def current_pass() -> int:
    """A number of the backward pass that this thread is in; -1 outside of any."""
    return int(torch._C._current_graph_task_id())


def accumulator(parameter: torch.nn.Parameter) -> Any:
    """The node that adds to ``parameter.grad``. Hooks on it stay as long as somebody has it."""
    with torch.enable_grad():
        node: Any = torch.autograd.graph.get_gradient_edge(parameter).node
    # A parameter of a class of the program's may answer with a view of it.
    while not hasattr(node, "variable"):
        node = node.next_functions[0][0]
    return node


def reached(accumulators: Iterable[Any]) -> list[bool]:
    """Inside a backward pass: which of these it will execute.

    All False for ``torch.autograd.grad``, which accumulates no gradients.
    """
    nodes = list(accumulators)
    try:
        return [bool(torch._C._will_engine_execute_node(node)) for node in nodes]
    except RuntimeError:
        # torch.autograd.grad with respect to the parameters themselves.
        return [False] * len(nodes)
