"""What training scripts do before the first step: the same parameters, optimizer state and objects on all ranks.

Objects travel as pickles: of a rank of the same job, which has the job's secret. What ``pickle`` refuses, such as a lambda, the
package cloudpickle takes where it is installed.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from shoal.horovod.common import basics
from shoal.horovod.common.handles import Together
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch import submission
from shoal.horovod.torch.allgather import allgather
from shoal.horovod.torch.broadcast import begin_, broadcast_
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
    skeleton = object_of_root(lambda: taken_apart(state_of(optimizer), tensors), root_rank, label, global_process_set)
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
    return object_of_root(lambda: obj, root_rank, "object" if name is None else name, process_set)


def object_of_root(make: Callable[[], Any], root_rank: int, label: str, process_set: ProcessSet) -> Any:
    """``broadcast_object`` of what ``make`` returns on the root. What goes wrong with it there is an error on all ranks."""
    if basics.rank() == root_rank:
        with submission.failing_everywhere("broadcast", f"{label}.sz", process_set.group):
            obj = make()
            content = _to_bytes(obj)
        broadcast_(torch.tensor([content.numel()]), root_rank, f"{label}.sz", process_set)
        broadcast_(content, root_rank, f"{label}.t", process_set)
        return obj
    size = broadcast_(torch.zeros(1, dtype=torch.int64), root_rank, f"{label}.sz", process_set)
    content = broadcast_(torch.empty(int(size), dtype=torch.uint8), root_rank, f"{label}.t", process_set)
    return _from_bytes(content)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, by rank. ``name``: for messages. Raises what pickle raises, and HorovodInternalError."""
    label = "object" if name is None else name
    with submission.failing_everywhere("allgather", f"{label}.sz", global_process_set.group):
        content = _to_bytes(obj)
    sizes = allgather(torch.tensor([content.numel()]), name=f"{label}.sz").tolist()
    gathered = allgather(content, name=f"{label}.t")
    return [_from_bytes(each) for each in torch.split(gathered, sizes)]


def _to_bytes(obj: Any) -> torch.Tensor:
    try:
        content = pickle.dumps(obj)
    except Exception:
        try:
            import cloudpickle  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        content = cloudpickle.dumps(obj)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _from_bytes(content: torch.Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())
