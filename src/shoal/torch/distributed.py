"""DistributedDataParallel: PyTorch's interface, Shoal's averaging."""

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoal import groups, layout
from shoal.errors import ConfigurationError, ShoalError
from shoal.groups import Group
from shoal.torch import graph, runtime
from shoal.torch.agreement import agree
from shoal.torch.arena import NamedParameter
from shoal.torch.channel import Channel
from shoal.torch.join import Joining
from shoal.torch.logging_data import DDPLoggingData
from shoal.torch.reducer import Reducer, Turn, describe
from shoal.torch.state import broadcast_state

MIB = layout.MIB

BUFFERS = "buffers"


class DistributedDataParallel(torch.nn.Module):
    """Wraps ``module`` so that every backward pass leaves the mean of all ranks' gradients in ``param.grad``.

    Joins the job (``shoal.torch.init``) if this process has not. All ranks begin with the parameters and buffers of the
    group's first member. Averaging overlaps with the backward pass and is complete when ``loss.backward()`` returns.

    ``broadcast_buffers``: before every forward pass in training, buffers become those of the group's first member.
    ``find_unused_parameters``: a backward pass may leave parameters without a gradient; those count as zero on this rank,
    and where no rank had a gradient, ``param.grad`` stays as it was. Without it a missing gradient is an error.
    ``process_group``: a ``shoal.Group`` whose members wrap the same module; default: all ranks.
    ``fusion_mb``: MB (2^20 bytes) that are averaged at once; default SHOAL_FUSION_MB, else computed from the model and
    the number of servers.
    ``device_ids`` and ``output_device`` exist so that calls written for PyTorch's own class work: only None is possible.

    ``param.grad`` is a view into a common memory. A reference to it that is kept sees the next step's values.

    Raises Mismatch on every rank if the modules differ, ConfigurationError for parameters that are not on the CPU,
    TypeError for a dtype that cannot be averaged, ValueError if no parameter requires a gradient. ``loss.backward()``
    raises ShoalError on every rank if a gradient is missing on one, naming the parameter, Mismatch if parameters have
    been frozen or changed on some ranks only, PeerLost and Timeout as every operation does. After an error the gradients
    are unspecified.
    """

    module: torch.nn.Module

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: None = None,
        output_device: None = None,
        *,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        process_group: Group | None = None,
        fusion_mb: float | None = None,
    ) -> None:
        super().__init__()
        if device_ids is not None or output_device is not None:
            raise ConfigurationError("only the CPU is supported yet: leave out device_ids and output_device")
        _check_module(module)
        runtime.init()
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.process_group = _checked_group(process_group)
        self._channel = Channel(self.process_group)
        self.require_backward_grad_sync = True
        self._joining: Joining | None = None
        agree(self._channel, "module", _describe_module(module), "parameters and buffers")
        broadcast_state(self._channel, "initial", [*module.parameters(), *module.buffers()])
        self._reducer = Reducer(self._channel, find_unused_parameters, _FusionSize(self.process_group, fusion_mb))
        self._manage_parameters()
        # The hooks of the parameters go with the wrapper.
        weakref.finalize(self, self._reducer.close).atexit = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """``module(*args, **kwargs)``."""
        if not torch.is_grad_enabled() or graph.inside_backward():
            return self.module(*args, **kwargs)
        self._reducer.settle_interrupted()
        self._reducer.synchronise = self.require_backward_grad_sync
        self._look_at_parameters()
        buffers = list(self.module.buffers())
        broadcasts = bool(buffers) and self.require_backward_grad_sync and self.broadcast_buffers and self.training
        root = 0 if self._joining is None else self._joining.forward(broadcasts)
        if broadcasts:
            broadcast_state(self._channel, BUFFERS, buffers, root)
        output = self.module(*args, **kwargs)
        self._reducer.watch(output)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes inside do without communication, and so do their backward passes.

        Their gradients add up on each rank; the next backward pass of a forward pass outside averages the sums.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Ranks may have different numbers of steps inside: those that are through take part in the others' until the end.

        They count as gradients of zero. Afterwards all have the parameters (and, with ``broadcast_buffers``, buffers) of the
        lowest of the ranks that had the most steps; the state of optimizers is not touched, and the gradients of the ranks
        that were through earlier are unspecified. In each step all ranks that are left run the same passes. Ranks wait for
        each other at the first gradient of each step, which they need not outside.

        ``divide_by_initial_world_size``: the averages are over all ranks; False: over those that are left. ``enable``: False
        for no effect. ``throw_on_early_termination``: ShoalError on every rank, in ``forward`` or here, as soon as one is
        through before another; for steps that contain collective operations of their own.

        A rank that leaves with an exception is an error on every other one, in its next step or here.
        """
        if not enable:
            yield
            return
        if self._joining is not None:
            raise ShoalError(f"{self._channel.here}: join() of this module is on already: leave it first")
        joining = Joining(self._channel, divide_by_initial_world_size, throw_on_early_termination)
        self._joining, self._reducer.take_turn = joining, joining.backward
        try:
            yield
            self._look_at_parameters()
            root = joining.run_out(self._shadow_buffers, self._reducer.shadow)
            tensors = [*self.module.parameters(), *(self.module.buffers() if self.broadcast_buffers else ())]
            broadcast_state(self._channel, "joined", tensors, root)
        except BaseException as error:
            joining.leave(error)
            raise
        finally:
            self._joining, self._reducer.take_turn = None, Turn

    def get_ddp_logging_data(self) -> DDPLoggingData:
        """What averaging has cost so far on this rank: bytes, operations, overlap, and the time that was waited."""
        return self._reducer.logging_data

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("DistributedDataParallel belongs to its process: copy or pickle its .module instead")

    def _fingerprint(self) -> list[tuple[object, ...]]:
        """Whatever of the parameters the arenas were made for, as cheaply as it can be had."""
        return [
            (id(parameter), parameter.requires_grad, parameter.dtype, parameter.shape, parameter.stride())
            for parameter in self.module.parameters()
        ]

    def _look_at_parameters(self) -> None:
        if self._fingerprint() != self._managed:
            self._manage_parameters()

    def _shadow_buffers(self, root: int) -> None:
        broadcast_state(self._channel, BUFFERS, list(self.module.buffers()), root)

    def _manage_parameters(self) -> None:
        """Makes arenas for the parameters as they are now: at the start, and when one was frozen, thawed or changed."""
        _check_module(self.module)
        self._managed = self._fingerprint()
        for _, parameter in self.module.named_parameters():
            if not parameter.requires_grad and parameter.grad is not None:
                # It must not keep an arena alive that nobody uses any more.
                parameter.grad = parameter.grad.clone()
        self._reducer.manage(_trainable(self.module))


class _FusionSize:
    """The size of a buffer, in bytes, for so many bytes of gradients."""

    def __init__(self, group: Group, fusion_mb: float | None) -> None:
        if fusion_mb is not None and not (fusion_mb > 0 and math.isfinite(fusion_mb)):
            raise ValueError(f"fusion_mb must be a number above 0, got {fusion_mb}")
        session = group.session
        self._fixed = session.settings.fusion_mb if fusion_mb is None else fusion_mb
        self._servers = sum(weight > 0 for weight in session.weights)

    def __call__(self, total: int) -> int:
        if self._fixed is not None:
            return max(1, round(self._fixed * MIB))
        return layout.fusion_bytes(total, self._servers)


def _trainable(module: torch.nn.Module) -> list[NamedParameter]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def _check_module(module: torch.nn.Module) -> None:
    if not _trainable(module):
        raise ValueError("no parameter of the module requires a gradient: there is nothing to average")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise TypeError(f"{name} has no shape yet: run the module once before you wrap it")
        if tensor.device.type != "cpu":
            raise ConfigurationError(f"{name} is on {tensor.device}; only the CPU is supported yet: call module.cpu()")


def _checked_group(group: Group | None) -> Group:
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"process_group must be a shoal.Group, got {type(group).__module__}.{type(group).__name__}")
    return groups.world() if group is None else group


def _describe_module(module: torch.nn.Module) -> list[str]:
    parameters = [
        f"parameter {describe(name, parameter)}{'' if parameter.requires_grad else ' frozen'}"
        for name, parameter in module.named_parameters()
    ]
    return parameters + [f"buffer {describe(name, buffer)}" for name, buffer in module.named_buffers()]
