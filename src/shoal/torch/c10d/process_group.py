"""The process group: PyTorch's collectives in terms of Shoal's.

What it does not override goes to a gloo group of the same ranks: PyTorch's base class hands it to the backend that is
registered for the device. So do reductions in the cases that Shoal has not (sparse tensors, bitwise operators). All of that
is for tensors on the CPU; Shoal's own operations take those of a CUDA device too (shoal/torch/staging.py). Devices that the
program wants another backend for have that (by_device.py).
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroup,
    ReduceScatterOptions,
    Store,
)

from shoal import operations, runtime
from shoal.groups import Group
from shoal.operations import Plan
from shoal.torch import accelerators, versions
from shoal.torch.c10d import builtin_hooks, forgotten, gloo, inherited, membership, places
from shoal.torch.c10d.arguments import Tensors, as_list, operator_of, options_of, single, split_sizes
from shoal.torch.c10d.base import Base, with_all_names
from shoal.torch.c10d.by_device import NAME, Others, by_device
from shoal.torch.c10d.places import Place
from shoal.torch.c10d.tensors import Flat, apart, count, divide, fill, joined
from shoal.torch.c10d.work import OperationWork
from shoal.torch.compiled import untraced_class
from shoal.torch.staging import Transfer
from shoal.torch.submissions import Submissions


@untraced_class
@with_all_names
class ShoalProcessGroup(Base):
    """A process group of backend "shoal".

    Every method that starts an operation returns its ``Work`` at once; the arrays must be left alone until that is done. What
    is wrong with the arguments on this rank is raised here, and the other ranks hear of it. Tensors of a CUDA device are
    read as what is in the current stream by then has left them.
    """

    def __init__(self, store: Store, rank: int, size: int, group: Group, timeout: timedelta, owns_job: bool) -> None:
        super().__init__(rank, size)
        self._store = store
        self._group = group
        self._timeout: timedelta = timeout
        self._owns_job = owns_job
        self._program = Place(group.name)
        self._gloo = gloo.make(store, group.session.incarnation, rank, size, timeout)
        self._submissions = Submissions()
        self.others = Others(
            PrefixStore(f"others {group.session.incarnation.hex()}", store),
            rank,
            list(group.ranks),
            timeout,
            self._gloo,
        )
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.CUSTOM, self._gloo)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        inherited.watch(self)

    # --- What PyTorch asks of a process group ---

    def get_group_store(self) -> Store:
        return self._store

    def getBackendName(self) -> str:
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self.others.set_timeout(timeout)
        super().set_timeout(timeout)

    def shutdown(self) -> None:
        """Leaves the job if this process group has joined it, once this rank's operations are done."""
        self.others.shutdown()
        super().shutdown()
        if self._owns_job:
            self._owns_job = False
            runtime.shutdown()

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> "ShoalProcessGroup | None":
        """A process group of these members of this one; None on all others. It takes all devices that this one does."""
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self._group.name} {list(ranks)}"
        limit = self._timeout if timeout is None else timeout
        group = membership.group_of([self._group.ranks[member] for member in ranks], name, limit)
        store = PrefixStore(name, self._store)
        made = ShoalProcessGroup(store, ranks.index(self.rank()), len(ranks), group, limit, owns_job=False)
        made._set_group_name(name)
        made._set_group_desc(group_desc or "undefined")
        return made

    def abort(self) -> None:
        """Ends the job for all ranks if this process group has joined it."""
        self.others.abort()
        super().abort()
        if self._owns_job:
            self._owns_job = False
            runtime.abort(f"rank {self.rank()} has aborted its process group")

    # --- Reductions ---

    @by_device
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None) -> Any:
        tensors = as_list(tensors)
        options = options_of(AllreduceOptions, opts, op=op, timeout=timeout)
        operator = operator_of(tensors, options.reduceOp)
        if operator is None:
            _on_cpu(f"all_reduce with {options.reduceOp}", tensors)
            return self._gloo.allreduce(tensors, options)
        return self._reduce_in_place("all_reduce", tensors, operator, options)

    @by_device
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        options = options_of(AllreduceCoalescedOptions, opts)
        operator = operator_of(tensors, options.reduceOp)
        if operator is None:
            _on_cpu(f"all_reduce_coalesced with {options.reduceOp}", tensors)
            return self._gloo.allreduce_coalesced(list(tensors), options)
        if len(tensors) == 1:
            return self._reduce_in_place("all_reduce_coalesced", list(tensors), operator, options)
        transfer = self._transfer(tensors)
        together = joined(tensors, transfer)
        places = [tensor.detach() for tensor in tensors]

        def plan(group: Group) -> Plan:
            return operations.allreduce(group, together, operator, in_place=True).then(
                lambda: divide(together, places, transfer)
            )

        return self._start("all_reduce_coalesced", options, list(tensors), plan, transfer)

    @by_device
    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Any:
        outputs = as_list(output_tensors)
        inputs = input_tensors if isinstance(output_tensors, torch.Tensor) else single(input_tensors)
        options = options_of(ReduceScatterOptions, opts, op=op, timeout=timeout)
        operator = operator_of(inputs, options.reduceOp)
        if operator is None:
            _on_cpu(f"reduce_scatter with {options.reduceOp}", inputs)
            return self._gloo.reduce_scatter(outputs, [inputs], options)
        output = single(outputs)
        transfer = self._transfer([output, *inputs])
        together = joined(inputs, transfer)
        if len({tensor.numel() for tensor in inputs}) == 1:
            return self._scatter_reduced("reduce_scatter", output, together, operator, options, transfer)
        begin = sum(count(tensor) for tensor in inputs[: self.rank()])
        own = together[begin : begin + count(output)]
        place = output.detach()

        def plan(group: Group) -> Plan:
            return operations.allreduce(group, together, operator, in_place=True).then(
                lambda: divide(own, [place], transfer)
            )

        return self._start("reduce_scatter", options, [output], plan, transfer)

    @by_device
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        options = options_of(ReduceScatterOptions, opts)
        operator = operator_of([input], options.reduceOp)
        if operator is None:
            _on_cpu(f"reduce_scatter_tensor with {options.reduceOp}", [input])
            return self._gloo._reduce_scatter_base(output, input, options)
        transfer = self._transfer([output, input])
        elements = Flat(input, transfer).elements
        return self._scatter_reduced("reduce_scatter_tensor", output, elements, operator, options, transfer)

    @by_device
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        options = options_of(ReduceScatterOptions, opts)
        if operator_of(inputs, options.reduceOp) is None:
            _on_cpu(f"reduce_scatter_tensor with {options.reduceOp}", inputs)
            # Not every version's gloo has a form for several.
            *first, last = [
                self._gloo._reduce_scatter_base(*pair, options) for pair in zip(outputs, inputs, strict=True)
            ]
            for work in first:
                work.wait()
            return last
        return OperationWork.of_all(
            [self.reduce_scatter_single(*pair, options) for pair in zip(outputs, inputs, strict=True)]
        )

    # --- Copies ---

    @by_device
    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Any:
        tensors = as_list(tensors)
        options = options_of(BroadcastOptions, opts, root=root, timeout=timeout)
        transfer = self._transfer(tensors)
        flat = Flat(single(tensors), transfer, read=options.rootRank == self.rank())

        def plan(group: Group) -> Plan:
            if options.rootRank not in range(group.size):
                raise ValueError(f"the root has rank {options.rootRank}, but the group only {group.size} ranks")
            root = group.ranks[options.rootRank]
            return operations.broadcast(group, flat.elements, root, in_place=True).then(flat.finish)

        return self._start("broadcast", options, tensors, plan, transfer)

    @by_device
    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        outputs = output_tensors if isinstance(input_tensors, torch.Tensor) else single(output_tensors)
        given = single(as_list(input_tensors))
        options = options_of(AllgatherOptions, opts, timeout=timeout)
        transfer = self._transfer([given, *outputs])
        flat = Flat(given, transfer)
        flats = [Flat(output, transfer, read=False) for output in outputs]

        def plan(group: Group) -> Plan:
            return operations.allgather_by_blocks(group, flat.elements, lambda data, blocks: fill(flats, data, blocks))

        return self._start("all_gather", options, list(outputs), plan, transfer)

    @by_device
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """``output``: of as many elements as the inputs of all ranks together, in their order."""
        transfer = self._transfer([output, input])
        flat = Flat(output, transfer, read=False)
        # The input may be a part of the output.
        given = apart(Flat(input, transfer).elements, flat.elements)

        def plan(group: Group) -> Plan:
            return operations.allgather_into(group, given, flat.elements).then(flat.finish)

        return self._start("all_gather_into_tensor", options_of(AllgatherOptions, opts), [output], plan, transfer)

    @by_device
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        return OperationWork.of_all([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    @by_device
    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        options = options_of(AllToAllOptions, opts, timeout=timeout)
        outputs = list(output_tensors)
        transfer = self._transfer([*outputs, *input_tensors])
        inputs = joined(input_tensors, transfer)
        splits = [count(tensor) for tensor in input_tensors]
        flats = [Flat(output, transfer, read=False) for output in outputs]

        def plan(group: Group) -> Plan:
            return operations.alltoall_by_blocks(group, inputs, splits, lambda data, blocks: fill(flats, data, blocks))

        return self._start("all_to_all", options, outputs, plan, transfer)

    @by_device
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        options = options_of(AllToAllOptions, opts, timeout=timeout)
        transfer = self._transfer([output, input])
        flat = Flat(output, transfer, read=False)
        given = apart(Flat(input, transfer).elements, flat.elements)

        def plan(group: Group) -> Plan:
            splits = split_sizes(given, input, input_split_sizes, group.size)
            expected = split_sizes(flat.elements, output, output_split_sizes, group.size)
            return operations.alltoall_into(group, given, splits, flat.elements, expected).then(flat.finish)

        return self._start("all_to_all_single", options, [output], plan, transfer)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        options = options_of(BarrierOptions, opts, timeout=timeout)
        return self._start("barrier", options, [], operations.barrier, None)

    # --- What gloo does, for tensors on the CPU ---

    def send(self, tensors: Tensors, *args: Any, **kwargs: Any) -> Any:
        _on_cpu("send", tensors)
        return super().send(tensors, *args, **kwargs)

    def recv(self, tensors: Tensors, *args: Any, **kwargs: Any) -> Any:
        _on_cpu("recv", tensors)
        return super().recv(tensors, *args, **kwargs)

    def recv_anysource(self, tensors: Tensors, *args: Any, **kwargs: Any) -> Any:
        _on_cpu("recv", tensors)
        return super().recv_anysource(tensors, *args, **kwargs)

    @by_device
    def reduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        _on_cpu("reduce", as_list(tensors))
        return super().reduce(tensors, *args, **kwargs)

    @by_device
    def gather(self, output_tensors: Any, input_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        _on_cpu("gather", as_list(input_tensors))
        return super().gather(output_tensors, input_tensors, *args, **kwargs)

    @by_device
    def scatter(self, output_tensors: Any, input_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        _on_cpu("scatter", as_list(output_tensors))
        return super().scatter(output_tensors, input_tensors, *args, **kwargs)

    @by_device
    def allgather_coalesced(self, output_lists: Any, input_list: Tensors, *args: Any, **kwargs: Any) -> Any:
        _on_cpu("all_gather_coalesced", input_list)
        return super().allgather_coalesced(output_lists, input_list, *args, **kwargs)

    # --- How they are done ---

    def _reduce_in_place(self, called: str, tensors: Tensors, operator: str, options: Any) -> OperationWork:
        transfer = self._transfer(tensors)
        flat = Flat(single(tensors), transfer)

        def plan(group: Group) -> Plan:
            return operations.allreduce(group, flat.elements, operator, in_place=True).then(flat.finish)

        return self._start(called, options, list(tensors), plan, transfer)

    def _scatter_reduced(
        self,
        called: str,
        output: torch.Tensor,
        elements: torch.Tensor,
        operator: str,
        options: Any,
        transfer: Transfer | None,
    ) -> OperationWork:
        flat = Flat(output, transfer, read=False)
        part = flat.elements.numel()
        # The output may be this rank's part of the input; any other is read after results have come.
        if flat.elements.data_ptr() != elements[self.rank() * part :].data_ptr():
            elements = apart(elements, flat.elements)

        def plan(group: Group) -> Plan:
            if part * group.size != elements.numel():
                raise ValueError(
                    f"the input has {elements.numel()} elements, but the output {part}, which should be one of {group.size} "
                    "equal parts"
                )
            return operations.reducescatter_into(group, elements, flat.elements, operator).then(flat.finish)

        return self._start(called, options, [output], plan, transfer)

    def _transfer(self, tensors: Tensors) -> Transfer | None:
        """For an operation on these tensors; None if they are on the CPU."""
        device = accelerators.of(tensors)
        return None if device is None else self._submissions.transfer(device, waits=places.current() is None)

    def _start(
        self,
        called: str,
        options: Any,
        results: list[torch.Tensor],
        plan: Callable[[Group], Plan],
        transfer: Transfer | None,
    ) -> OperationWork:
        caller = places.current()
        place = (caller or self._program).operation()
        seconds = options.timeout.total_seconds()
        if seconds <= 0:
            seconds = self._timeout.total_seconds()
        name = None if caller is None else str(place)
        handle = self._submissions.submit(called, name, self._group, plan, seconds, transfer)
        return OperationWork([handle], results, place, timedelta(seconds=seconds))


builtin_hooks.replace_for(ShoalProcessGroup)


def create(options: Any, _: Any = None) -> ShoalProcessGroup:
    """What PyTorch calls to make a process group. ``options``: its ``_DistributedBackendOptions``."""
    versions.check_backend()
    forgotten.leave()
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    owns_job = not ranks and membership.join(options.store, rank, size)
    group = membership.group_of(ranks, options.group_id, options.timeout)
    made = ShoalProcessGroup(options.store, rank, size, group, options.timeout, owns_job)
    if owns_job:
        forgotten.remember(made)
    return made


def _on_cpu(called: str, tensors: Tensors) -> None:
    """Raises TypeError for tensors that gloo, inside, is not given."""
    if accelerators.of(tensors) is not None:
        raise TypeError(
            f'{called} of a tensor on {tensors[0].device}: a process group of backend "shoal" does that for tensors on the CPU '
            'only: pass tensor.cpu(), or a group of another backend, such as new_group(backend="nccl")'
        )
