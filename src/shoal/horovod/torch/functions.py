"""What training scripts do before the first step: the same parameters, optimizer state and objects on all ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from shoal.horovod.common import basics, objects
from shoal.horovod.common.handles import Together
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch import submission
from shoal.horovod.torch.broadcast import begin_
from shoal.horovod.torch.optimizer_state import Received, state_of, taken_apart, zero_gradients


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Gives all ranks the tensors that the root has, in place.

    ``params``: a ``state_dict()``, ``named_parameters()`` or a list of tensors, the same names and shapes on all ranks.
    Raises ValueError for anything else, and HorovodInternalError.
    """
    # A state_dict may hold what is no tensor.
    _broadcast([(name, tensor) for name, tensor in _named(params) if isinstance(tensor, torch.Tensor)], root_rank)


def _broadcast(named: Sequence[tuple[str | None, torch.Tensor]], root_rank: int) -> None:
    operations = [begin_(tensor, root_rank, name, global_process_set) for name, tensor in named]
    Together(operations, lambda _: None).wait()


def _named(params: Any) -> list[tuple[str | None, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, str | torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(  # noqa: TRY004
            f"a {type(params).__name__} holds no parameters: pass model.state_dict(), model.named_parameters() or a list"
        )
    return [each if isinstance(each, tuple) else (None, each) for each in params]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Gives all ranks the root's optimizer state and options, such as the learning rate, in place.

    A rank whose optimizer has no state, since it has made no step, has the root's afterwards; no step is made for it. As with
    Horovod, the dense gradients of an optimizer that had none are zero then, not None. ``model``: tells which parameters have
    sparse ones. Raises ValueError for LBFGS, whose state is that of one rank's search, and for an optimizer that has other groups
    of parameters than the root's; and HorovodInternalError.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(  # noqa: TRY004
            "the state of LBFGS belongs to one rank's line search and cannot be shared: use another optimizer"
        )
    if not optimizer.state:
        zero_gradients(optimizer, model)
    label = "optimizer state"
    tensors: list[torch.Tensor] = []
    skeleton = objects.broadcast_object(
        lambda: taken_apart(state_of(optimizer), tensors), root_rank, label, global_process_set
    )
    if basics.rank() == root_rank:
        _broadcast([(f"{label}.{index}", tensor.contiguous()) for index, tensor in enumerate(tensors)], root_rank)
        return
    with submission.failing_everywhere("broadcast", f"{label}.0", global_process_set.group):
        received = Received(optimizer, skeleton)
    _broadcast([(f"{label}.{index}", tensor) for index, tensor in sorted(received.tensors.items())], root_rank)
    received.install()


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object that the root has: on the root ``obj`` itself, elsewhere a copy. ``name``: for messages.

    Raises what pickle raises on the root, and HorovodInternalError.
    """
    return objects.broadcast_object(lambda: obj, root_rank, "object" if name is None else name, process_set)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, by rank. ``name``: for messages. Raises what pickle raises, and HorovodInternalError."""
    return objects.allgather_object(obj, "object" if name is None else name, global_process_set)
