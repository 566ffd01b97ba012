"""What training scripts do before the first step: the same parameters, optimizer state and objects on all ranks.

Objects travel as pickles: of a rank of the same job, which has the job's secret. What ``pickle`` refuses, such as a lambda, the
package cloudpickle takes where it is installed.
"""

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from shoal.horovod.common import basics
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.torch.allgather import allgather
from shoal.horovod.torch.broadcast import broadcast_, broadcast_async_
from shoal.horovod.torch.synchronization import synchronize


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Gives all ranks the tensors that the root has, in place.

    ``params``: a ``state_dict()``, ``named_parameters()`` or a list of tensors, the same names and shapes on all ranks.
    Raises ValueError for anything else, and HorovodInternalError.
    """
    handles = [
        broadcast_async_(tensor, root_rank, name)
        for name, tensor in _named(params)
        # A state_dict may hold what is no tensor.
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


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
    """Gives all ranks the root's optimizer state and options, such as the learning rate.

    A rank whose optimizer has no state, since it has made no step, has the root's afterwards; no step is made for it. As with
    Horovod, the dense gradients of an optimizer that had none are zero then, not None. ``model``: tells which parameters have
    sparse ones. Raises ValueError for LBFGS, whose state is that of one rank's search, and HorovodInternalError.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(  # noqa: TRY004
            "the state of LBFGS belongs to one rank's line search and cannot be shared: use another optimizer"
        )
    if not optimizer.state:
        _zero_gradients(optimizer, model)
    here = basics.rank() == root_rank
    skeleton, tensors = _taken_apart(optimizer.state_dict()) if here else (None, [])
    skeleton = broadcast_object(skeleton, root_rank, name="optimizer state")
    if not here:
        tensors = [torch.empty(place.shape, dtype=place.dtype) for place in _places(skeleton)]
    sent = [tensor.detach().cpu().contiguous() for tensor in tensors]
    broadcast_parameters([(f"optimizer state.{index}", tensor) for index, tensor in enumerate(sent)], root_rank)
    if not here:
        torch.optim.Optimizer.load_state_dict(optimizer, _put_together(skeleton, sent))


def _zero_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    if isinstance(optimizer, torch.optim.SparseAdam):
        return
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = (
        [] if model is None else [each for each in model.modules() if isinstance(each, embeddings) and each.sparse]
    )
    sparse = {id(parameter) for module in modules for parameter in module.parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None and id(parameter) not in sparse:
                parameter.grad = torch.zeros_like(parameter)


class _Place:
    """Where a tensor was in a nested state: the ``index``-th that is sent."""

    def __init__(self, index: int, shape: torch.Size, dtype: torch.dtype) -> None:
        self.index = index
        self.shape = shape
        self.dtype = dtype


def _taken_apart(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """The state with a ``_Place`` for each tensor, and the tensors."""
    tensors: list[torch.Tensor] = []

    def apart(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _Place(len(tensors) - 1, value.shape, value.dtype)
        return _mapped(apart, value)

    return apart(state), tensors


def _places(skeleton: Any) -> list[_Place]:
    found: list[_Place] = []

    def look(value: Any) -> Any:
        if isinstance(value, _Place):
            found.append(value)
            return value
        return _mapped(look, value)

    look(skeleton)
    return found


def _put_together(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    def together(value: Any) -> Any:
        return tensors[value.index] if isinstance(value, _Place) else _mapped(together, value)

    return together(skeleton)


def _mapped(change: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: change(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(change(each) for each in value)
    return value


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object that the root has: on the root ``obj`` itself, elsewhere a copy. ``name``: for messages.

    Raises what pickle raises on the root, and HorovodInternalError.
    """
    label = "object" if name is None else name
    if basics.rank() == root_rank:
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
