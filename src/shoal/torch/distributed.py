"""DistributedDataParallel: PyTorch's interface, Shoal's averaging."""

import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shoal.errors import ShoalError
from shoal.gradients.agreement import agree
from shoal.gradients.fusion_size import FusionSize
from shoal.gradients.layout import MIB
from shoal.gradients.named_operations import group_of_copies
from shoal.job import groups
from shoal.job.groups import Group
from shoal.torch import (
    arguments,
    checkpoints,
    compiled,
    devices,
    module_tensors,
    narrowing,
    node_places,
    pinned_memory,
    runtime,
)
from shoal.torch.arena import NamedParameter
from shoal.torch.backward_pass import Turn
from shoal.torch.broadcast_state import Replaced, broadcast_state, wait_for_all
from shoal.torch.gradient_format import gradient_dtype
from shoal.torch.join import Joining
from shoal.torch.logging_data import DDPLoggingData
from shoal.torch.new_parameters import KnownParameters
from shoal.torch.node_places import OFF
from shoal.torch.reducer import Reducer
from shoal.torch.tensor_operations import TensorOperations

BUFFERS = "buffers"


class DistributedDataParallel(torch.nn.Module):
    """Wraps ``module`` so that every backward pass leaves the mean of all ranks' gradients in ``param.grad``.

    Joins the job (``shoal.torch.init``) if this process has not. All ranks begin with the parameters and buffers of the
    group's first member. Averaging overlaps with the backward pass and is complete when ``loss.backward()`` returns.

    ``forward_sync_buffers``: before every forward pass that follows one whose gradients are averaged, also if it has none itself as
    in evaluation, buffers become those of the group's first member. Default: True. ``broadcast_buffers``, PyTorch's older name,
    says the same; with False, ranks begin with buffers of their own too. Beside ``forward_sync_buffers`` it counts for nothing.
    ``init_sync``: False if parameters and buffers are the same on all ranks already; then this takes their word for it.
    ``process_group``: a ``shoal.Group`` or one of torch.distributed, whose members wrap the same module; default: all ranks.
    ``device_mesh``, of one dimension, says the same.
    ``bucket_cap_mb`` (or ``fusion_mb``): MB (2^20 bytes) that are averaged at once; default SHOAL_FUSION_MB, else computed
    from the model and the number of servers.
    ``find_unused_parameters``: a backward pass may leave parameters without a gradient; those count as zero on this rank,
    and where no rank had a gradient, ``param.grad`` stays as it was. A buffer of which no rank had a gradient is not sent.
    Without it a missing gradient is an error. ``skip_all_reduce_unused_params`` says the same.
    ``static_graph``: the same parameters have a gradient in every step, in which nested backward passes may reach them
    several times. In the first step averaging does not overlap with the backward pass.
    ``gradient_as_bucket_view``, ``batched_grad_copy``, ``check_reduction``, ``lazy_bucket_allocation``: without effect; gradients are
    views in any case.
    ``wire_dtype``: ``torch.bfloat16`` halves the bytes of float32 gradients on the network: every rank rounds its own once, sums are
    float32's, and the mean is rounded. ``error_feedback`` adds what rounding has taken to the next step's gradients.
    ``device_ids``: the CUDA device of a module that has one only; inputs are moved there.
    ``intra``: the torch.distributed process group of the ranks of this node, which sum gradients by ``reduce_scatter_tensor``
    first; each averages its slice with the ranks at its place in the other nodes, and ``all_gather_into_tensor`` gives the slices to
    all of the node. None: one on NCCL, where torch.distributed is initialised and every machine has the same number of ranks,
    several, each with a module on a CUDA device of its own. "off": never.
    All others exist so that calls written for PyTorch's own class work: only the default is possible.

    The module may be on the CPU, on a CUDA device, or on several. Gradients of CUDA devices go through pinned memory of the
    host while the backward pass goes on; ``loss.backward()`` returns when all have come back to the host, and what comes into the
    caller's stream afterwards finds the means.

    A backward pass is averaged if it goes through a forward pass of the wrapper outside of ``no_sync``, or follows one that has not
    been averaged. Any other, through ``model.module`` for instance, only adds to ``param.grad``. Hooks of the program on parameters and
    their gradients come before averaging.

    A copy (``copy.deepcopy``, ``torch.load``) wraps a copy of the module, for the same ranks. It meets them when it is first called
    with gradients, and until then evaluates with the buffers that it has. It averages without ``intra``.

    Raises Mismatch on every rank if the modules differ, ConfigurationError for parameters on other devices,
    TypeError for a dtype that cannot be averaged, ValueError if no parameter requires a gradient, or if the groups that are given as
    ``intra`` make no nodes. Before it joins the
    job it raises TypeError and ValueError for a ``bucket_cap_mb`` that is no number above 0. ``loss.backward()`` raises
    ShoalError on every rank if a gradient is missing or sparse on one, naming the parameter, Mismatch if parameters
    have been frozen or changed on some ranks only, PeerLost and Timeout as every operation does. After an error the
    gradients are unspecified.
    """

    module: torch.nn.Module
    _train: list[bool]
    _buffers_sent: Sequence[Replaced]

    # By its name in PyTorch, which scripts call it by before they wrap a module: these parameters and buffers take no part.
    _set_params_and_buffers_to_ignore_for_model = staticmethod(module_tensors.ignore)

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | str | torch.device] | None = None,
        output_device: int | str | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: None = None,
        param_to_hook_all_reduce: None = None,
        mixed_precision: None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        lazy_bucket_allocation: bool = False,
        *,
        fusion_mb: float | None = None,
        wire_dtype: torch.dtype | None = None,
        error_feedback: bool = False,
        intra: Any = None,
    ) -> None:
        super().__init__()
        arguments.check_position(init_sync)
        arguments.refuse(
            dim=dim,
            delay_all_reduce_named_params=delay_all_reduce_named_params,
            param_to_hook_all_reduce=param_to_hook_all_reduce,
            mixed_precision=mixed_precision,
            bucket_cap_mb_list=bucket_cap_mb_list,
        )
        node_places.check(intra)
        fusion_mb = arguments.megabytes(bucket_cap_mb=bucket_cap_mb, fusion_mb=fusion_mb)
        if broadcast_buffers is not None and forward_sync_buffers is not None:
            warnings.warn(
                f"broadcast_buffers={broadcast_buffers} counts for nothing beside forward_sync_buffers", stacklevel=2
            )
        begins_with_same_buffers = forward_sync_buffers is not None or broadcast_buffers is not False
        self.forward_sync_buffers = begins_with_same_buffers and forward_sync_buffers is not False
        module_tensors.check(module, self.forward_sync_buffers or (init_sync and begins_with_same_buffers))
        self.device_ids, self.output_device = device_ids, output_device
        self._inputs_device = devices.of_inputs(
            device_ids, output_device, [parameter.device for _, parameter in module_tensors.parameters(module)]
        )
        self.module = module
        self.find_unused_parameters = find_unused_parameters or skip_all_reduce_unused_params
        self.static_graph = static_graph
        self.gradient_as_bucket_view = True
        self.require_forward_param_sync = self.require_backward_grad_sync = True
        self._joining: Joining | None = None
        self._fusion_mb = fusion_mb
        self._wire = narrowing.checked(wire_dtype, error_feedback)
        self._buffers_sent = ()
        runtime.init()
        self._meet(arguments.group_of(process_group, device_mesh), init_sync, begins_with_same_buffers, intra)

    @torch.inference_mode(False)
    def _meet(
        self, group: Group, init_sync: bool, init_sync_buffers: bool, intra: Any = OFF, of_copy: bool = False
    ) -> None:
        """Begins to average among the members of the group."""
        self._ranks = None if len(group.ranks) == group.session.size else group.ranks
        operations = TensorOperations(group, of_copy)
        if init_sync:
            agree(
                operations,
                "module",
                module_tensors.describe_all(self.module, init_sync_buffers),
                "parameters and buffers",
            )
            wait_for_all(broadcast_state(operations, "initial", self._synced_state(init_sync_buffers)))
            # It was as much as the gradients need, perhaps.
            pinned_memory.OF_OPERATIONS.let_go()
        parameters = [parameter for _, parameter in module_tensors.parameters(self.module)]
        nodes = None if of_copy else node_places.node_passes(intra, operations, parameters, group.session.size)
        self._reducer_made: Reducer | None = Reducer(
            operations,
            self.find_unused_parameters,
            self.static_graph,
            FusionSize(group, self._fusion_mb),
            KnownParameters(module_tensors.parameters(self.module)),
            self._wire,
            nodes,
        )
        self._manage_parameters()
        # The hooks of the parameters go with the wrapper.
        weakref.finalize(self, self._reducer_made.close).atexit = False

    @property
    def broadcast_buffers(self) -> bool:
        """``forward_sync_buffers`` by PyTorch's older name."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    @property
    def process_group(self) -> Group:
        """The ranks among which gradients are averaged."""
        return self._group_of_copy() if self._reducer_made is None else self._reducer_made.operations.group

    def _group_of_copy(self) -> Group:
        runtime.init()
        return groups.world() if self._ranks is None else group_of_copies(self._ranks)

    @property
    def _reducer(self) -> Reducer:
        if self._reducer_made is None:
            # A copy takes its original's word for it that ranks have the same.
            self._meet(self._group_of_copy(), init_sync=False, init_sync_buffers=False, of_copy=True)
        assert self._reducer_made is not None, "it has just been made"
        return self._reducer_made

    @property
    def _operations(self) -> TensorOperations:
        return self._reducer.operations

    @compiled.untraced_itself
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """``module(*args, **kwargs)``."""
        averages = self._before_forward()
        if self._inputs_device is not None:
            args, kwargs = devices.moved(self._inputs_device, (args, kwargs))
        before = compiled.cut_at_buffers(self)
        try:
            output = self.module(*args, **kwargs)
        finally:
            compiled.cut_at_buffers(before)
        if averages is not None:
            self._reducer.watch(output, averages)
            self.require_forward_param_sync = averages
        return output

    @compiled.untraced
    def _before_forward(self) -> bool | None:
        """Makes ready for a backward pass, if one may follow that is ours to watch: whether it is to average, else None."""
        has_gradients = torch.is_grad_enabled()
        if self._reducer_made is None and not (has_gradients and module_tensors.trainable(self.module)):
            # A copy that has not been trained may be this rank's alone.
            return None
        # A part that is computed again in the middle of a pass finds everything as that pass needs it.
        if has_gradients and not self._reducer.is_in_pass:
            self._reducer.settle_interrupted()
            self._look_at_parameters()
        buffers = self._synced_buffers() if self.require_forward_param_sync and self.forward_sync_buffers else []
        joins = self._joining is not None and (has_gradients or bool(buffers))
        root = self._joining.forward(broadcasts=bool(buffers)) if joins and self._joining is not None else 0
        if buffers:
            self._send_buffers(buffers, root)
        if has_gradients:
            return self.require_backward_grad_sync
        # As with PyTorch, evaluation begins with the same buffers, and asks for them once.
        self.require_forward_param_sync = False
        return None

    @property
    def bucket_bytes_cap(self) -> int:
        """Bytes of gradients that are averaged at once, as PyTorch's compiler asks for it; it takes no less than 1 MiB."""
        return max([MIB, *(buffer.memory.nbytes for buffer in self._reducer.arenas.buffers)])

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

        They count as gradients of zero. Afterwards all have the parameters (and, with ``forward_sync_buffers``, buffers) of the
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
            raise ShoalError(f"{self._operations.here}: join() of this module is on already: leave it first")
        joining = Joining(self._operations, divide_by_initial_world_size, throw_on_early_termination)
        self._joining, self._reducer.take_turn = joining, joining.backward
        try:
            yield
            self._look_at_parameters()
            root = joining.run_out(self._shadow_buffers, self._reducer.shadow)
            wait_for_all(
                broadcast_state(self._operations, "joined", self._synced_state(self.forward_sync_buffers), root)
            )
        except BaseException as error:
            joining.leave(error)
            raise
        finally:
            self._joining, self._reducer.take_turn = None, Turn

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Takes the names of this wrapper's ``state_dict``, which are those of PyTorch's own, or those of ``module``.

        As with PyTorch's own, every rank loads the same.
        """
        return super().load_state_dict(checkpoints.with_prefix(state_dict, self.module), strict, assign)

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Not here: gradients are averaged where they lie. Raises NotImplementedError, which says what there is instead."""
        raise NotImplementedError(
            "communication hooks belong to PyTorch's own DistributedDataParallel: use that, after "
            'torch.distributed.init_process_group("shoal")'
        )

    def get_ddp_logging_data(self) -> DDPLoggingData:
        """What averaging has cost so far on this rank: bytes, operations, overlap, and the time that was waited."""
        return DDPLoggingData() if self._reducer_made is None else self._reducer_made.logging_data

    def __getstate__(self) -> dict[str, Any]:
        """For copies and files: the module and the arguments; not what belongs to this process."""
        made = {"_reducer_made", "_managed", "_train", "_buffers_sent"}
        return {name: value for name, value in self.__dict__.items() if name not in made} | {"_joining": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._reducer_made = None
        self._buffers_sent = ()

    def _synced_buffers(self) -> list[torch.Tensor]:
        return [buffer for _, buffer in module_tensors.buffers(self.module) if buffer.layout == torch.strided]

    def _synced_state(self, with_buffers: bool) -> list[torch.Tensor]:
        parameters = [parameter for _, parameter in module_tensors.parameters(self.module)]
        return [*parameters, *(self._synced_buffers() if with_buffers else ())]

    def _look_at_parameters(self) -> None:
        """Before a pass: whether parameters are other ones than before, or frozen, or thawed."""
        parameters = list(module_tensors.parameters(self.module))
        if module_tensors.are_lent(parameters):
            return
        reducer, train = self._reducer, _which_train(parameters)
        if reducer.must_start_anew or reducer.managed.is_wasteful or _fingerprint(parameters) != self._managed:
            if not module_tensors.are_stand_ins(parameters):
                self._manage_parameters()
        elif train != self._train:
            self._train = train
            if reducer.managed.covers(parameters):
                reducer.managed.freeze()
            else:
                self._manage_parameters()

    def _shadow_buffers(self, root: int) -> None:
        self._send_buffers(self._synced_buffers(), root)

    def _send_buffers(self, buffers: Sequence[torch.Tensor], root: int) -> None:
        """Everyone gets the root's. The root goes on at once, as with PyTorch on gloo: it may be the only one that evaluates."""
        before, self._buffers_sent = self._buffers_sent, ()
        wait_for_all(before)
        # Where no pass follows, nobody would look at what goes wrong.
        in_stream = self._operations.waits_in_stream or (torch.is_grad_enabled() and self.require_backward_grad_sync)
        sent = broadcast_state(self._operations, BUFFERS, buffers, root, in_stream=in_stream)
        if self._operations.group.rank == root:
            self._buffers_sent = sent
        else:
            self._reducer.also_awaits(sent)

    def _manage_parameters(self) -> None:
        """Makes arenas for the parameters as they are now: at the start, and when one was changed, or thawed for the first time."""
        module_tensors.check_tensors(self.module)
        parameters = list(module_tensors.parameters(self.module))
        self._reducer.manage(parameters)
        # Or, where there was no memory for them, they would not be tried again.
        self._managed: list[tuple[object, ...]] = _fingerprint(parameters)
        self._train = _which_train(parameters)


def _fingerprint(parameters: Sequence[NamedParameter]) -> list[tuple[object, ...]]:
    """Whatever of the parameters the arenas were made for, as cheaply as it can be had."""
    return [
        (
            id(parameter),
            parameter.dtype,
            gradient_dtype(parameter),
            parameter.device,
            parameter.shape,
            parameter.stride(),
        )
        for _, parameter in parameters
    ]


def _which_train(parameters: Sequence[NamedParameter]) -> list[bool]:
    return [parameter.requires_grad for _, parameter in parameters]
