"""The state of an optimizer, as it travels: a skeleton without tensors, and the tensors one by one.

On other ranks it is put into the dicts and tensors that their optimizer has: schedulers, and the optimizer that a distributed
one was made of, share those.
"""

from typing import Any

import torch

from shoal.assembly.terms import rank_name
from shoal.horovod.common.process_sets import global_process_set


def zero_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """As Horovod leaves them: dense gradients that are None become zeros. ``model``: tells which parameters have sparse ones."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = (
        [] if model is None else [each for each in model.modules() if isinstance(each, embeddings) and each.sparse]
    )
    sparse = {id(parameter) for module in modules for parameter in module.parameters()}
    for parameter in _parameters(optimizer):
        if parameter.requires_grad and parameter.grad is None and id(parameter) not in sparse:
            parameter.grad = torch.zeros_like(parameter)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """State and options, with parameters by their numbers. State that belongs to no parameter has a key of its own.

    Not ``state_dict()``, to which hooks and subclasses do what only ``load_state_dict`` undoes.
    """
    numbers = {parameter: number for number, parameter in enumerate(_parameters(optimizer))}
    return {
        "sizes": _sizes(optimizer),
        "options": [
            {name: option for name, option in group.items() if name != "params"} for group in optimizer.param_groups
        ],
        "state": {
            numbers.get(key, key): state
            for key, state in optimizer.state.items()
            if key in numbers or not isinstance(key, torch.Tensor)
        },
    }


class Place:
    """Where a tensor was in a nested state: the ``index``-th that is sent."""

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index = index
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.is_cpu = tensor.is_cpu


def taken_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The state with a ``Place`` for each tensor. The tensors go into ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Place(len(tensors) - 1, value)
    if isinstance(value, dict):
        return {key: taken_apart(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(taken_apart(each, tensors) for each in value)
    return value


class Received:
    """The root's state on another rank: its tensors, which are still to be filled, by their index.

    Raises ValueError if the optimizer does not have the groups that the root's has.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, skeleton: Any) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self._optimizer = optimizer
        sizes, roots_sizes = _sizes(optimizer), skeleton["sizes"]
        if sizes != roots_sizes:
            session = global_process_set.group.session
            raise ValueError(
                f"{rank_name(session.rank, session.hosts)}: the optimizer has groups of {sizes} parameters, the root's has "
                f"{roots_sizes}: make the same groups on all ranks"
            )
        self._options = [
            self._whole(options, own, _device(own["params"]))
            for options, own in zip(skeleton["options"], optimizer.param_groups, strict=True)
        ]
        parameters = dict(enumerate(_parameters(optimizer)))
        self._state = {}
        for number, state in skeleton["state"].items():
            key = parameters.get(number, number)
            device = _device([key] if number in parameters else [])
            self._state[key] = self._whole(state, optimizer.state.get(key), device)

    def install(self) -> None:
        """When the tensors are filled."""
        for own, options in zip(self._optimizer.param_groups, self._options, strict=True):
            own.update(options)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)

    def _whole(self, skeleton: Any, own: Any, device: torch.device) -> Any:
        """``skeleton`` with tensors in their places: that of ``own`` where it fits, else a new one.

        A tensor that is on the root's host is on this one's, others are on ``device``.
        """
        if isinstance(skeleton, Place):
            tensor = own if _fits(own, skeleton) else _new(skeleton, device)
            self.tensors[skeleton.index] = tensor
            return tensor
        if isinstance(skeleton, dict):
            has = own if isinstance(own, dict) else {}
            return {key: self._whole(each, has.get(key), device) for key, each in skeleton.items()}
        if type(skeleton) in (list, tuple):
            parts = own if type(own) is type(skeleton) and len(own) == len(skeleton) else [None] * len(skeleton)
            return type(skeleton)(self._whole(each, part, device) for each, part in zip(skeleton, parts, strict=True))
        return skeleton


def _fits(own: Any, place: Place) -> bool:
    return (
        isinstance(own, torch.Tensor)
        and (own.shape, own.dtype, own.is_cpu) == (place.shape, place.dtype, place.is_cpu)
        and own.is_contiguous()
    )


def _new(place: Place, device: torch.device) -> torch.Tensor:
    return torch.empty(place.shape, dtype=place.dtype, device="cpu" if place.is_cpu else device)


def _device(parameters: list[torch.Tensor]) -> torch.device:
    return parameters[0].device if parameters else torch.device("cpu")
