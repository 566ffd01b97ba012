"""Devices whose tensors are another backend's in the same process group: ``init_process_group("cpu:shoal,cuda:nccl")``.

PyTorch takes a process group that is written in Python for all devices, whatever the string says. So collectives on
tensors of the other devices are handed over here, to a process group of PyTorch's own between the same ranks. That has one
device and its backend, made when the first such collective is called, as all ranks do.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store, _DistributedBackendOptions
from torch.distributed import distributed_c10d

from shoal.errors import ConfigurationError
from shoal.torch import versions

# Shoal's own, in what the program says.
NAME = "shoal"

_Method = TypeVar("_Method", bound=Callable[..., Any])

# PyTorch describes neither what begins with an underscore nor, in builds without it, NCCL.
_c10d: Any = distributed_c10d
_ProcessGroup: Any = ProcessGroup


def by_device(method: _Method) -> _Method:
    """A collective of a process group, with its name there, that is done on tensors of Shoal's devices."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        other = None if self.others.are_none else self.others.group_for(self, args, kwargs)
        if other is None:
            return method(self, *args, **kwargs)
        return getattr(other, versions.method_name(name))(*args, **kwargs)

    return call  # type: ignore[return-value]


class Others:
    """The process groups of the other devices. ``ranks``: in the default group; ``gloo``: a backend between them.

    ``store``: of this start of the job alone. ``are_none``: it is known that all devices are Shoal's.
    """

    def __init__(self, store: Store, rank: int, ranks: list[int], timeout: timedelta, gloo: Any) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._timeout = timeout
        self._gloo = gloo
        self._lock = threading.Lock()
        self._backends: dict[str, str] | None = None
        self._groups: dict[str, Any] = {}
        self.are_none = False

    def group_for(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The process group that a collective of ``owner`` with these arguments is handed to; None if it is Shoal's own.

        Raises ConfigurationError if the backend cannot be made here, and what PyTorch raises when it makes it.
        """
        if self._backends is None:
            self._backends = self._asked_for(owner)
            self.are_none = not self._backends
        device = _device_of([*args, *kwargs.values()])
        if device not in self._backends:
            return None
        with self._lock:
            if device not in self._groups:
                self._groups[device] = self._make(device, self._backends[device], owner.group_name)
            return self._groups[device]

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        for group in self._groups.values():
            group.set_timeout(timeout)

    def shutdown(self) -> None:
        for group in self._groups.values():
            group.shutdown()

    def abort(self) -> None:
        for group in self._groups.values():
            group.abort()

    def _asked_for(self, owner: Any) -> dict[str, str]:
        """Device → backend, where it is not Shoal, as the program has said. PyTorch knows once it has made the group.

        None where PyTorch does not know the group: a library that makes process groups itself says nothing of devices.
        """
        if owner not in distributed_c10d._world.pg_backend_config:
            return {}
        pairs = [pair.partition(":") for pair in dist.get_backend_config(owner).split(",")]
        return {device: backend for device, _, backend in pairs if backend not in (NAME, "")}

    def _make(self, device: str, backend: str, name: str) -> Any:
        store = PrefixStore(f"{device}:{backend}", self._store)
        group = _ProcessGroup(store, self._rank, len(self._ranks))
        kind, made = self._backend(backend, store, name)
        group._set_default_backend(kind)
        group._register_backend(torch.device(device), kind, made)
        group._set_group_name(f"{name} {device}:{backend}")
        return group

    def _backend(self, backend: str, store: Store, name: str) -> tuple[Any, Any]:
        kinds = _ProcessGroup.BackendType
        if backend == "gloo":
            return kinds.CUSTOM, self._gloo
        if backend == "nccl" and dist.is_nccl_available():
            options = _c10d.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            options.global_ranks_in_group = self._ranks
            options.group_name = name
            return kinds.NCCL, _c10d.ProcessGroupNCCL(store, self._rank, len(self._ranks), options)
        plugin = _c10d.Backend._plugins.get(backend.upper())
        if plugin is None:
            raise ConfigurationError(
                f'a process group of backend "{NAME}" cannot have "{backend}" beside it for other devices, or this PyTorch has '
                f'none: leave it out, and make a group of its own, dist.new_group(backend="{backend}")'
            )
        if not plugin.extended_api:
            return kinds.CUSTOM, plugin.creator_fn(store, self._rank, len(self._ranks), self._timeout)
        asked: Any = _DistributedBackendOptions()
        asked.store = store
        asked.group_rank, asked.group_size = self._rank, len(self._ranks)
        asked.timeout = self._timeout
        asked.group_id = name
        asked.global_ranks_in_group = self._ranks
        return kinds.CUSTOM, plugin.creator_fn(asked, None)


def _device_of(arguments: Any) -> str | None:
    """The type of the device of the first tensor, however deep in lists."""
    if isinstance(arguments, torch.Tensor):
        return arguments.device.type
    if isinstance(arguments, list | tuple):
        for argument in arguments:
            device = _device_of(argument)
            if device is not None:
                return device
    return None
