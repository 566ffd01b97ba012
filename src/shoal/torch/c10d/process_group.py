"""The process group: PyTorch's collectives in terms of Shoal's.

What it does not override goes to a gloo group of the same ranks: PyTorch's base class hands it to the backend that is
registered for the device. So do reductions in the cases that Shoal has not (sparse tensors, bitwise operators).
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
    ProcessGroup,
    ReduceScatterOptions,
    Store,
)

from shoal import collectives, operations, runtime
from shoal.groups import Group
from shoal.handles import Handle
from shoal.operations import Plan
from shoal.torch.c10d import gloo, membership, places
from shoal.torch.c10d.arguments import Tensors, as_list, operator_of, options_of, single, split_sizes
from shoal.torch.c10d.places import Place
from shoal.torch.c10d.tensors import Flat, apart, divide, fill, joined
from shoal.torch.c10d.untraced import untraced
from shoal.torch.c10d.work import OperationWork

NAME = "shoal"

# PyTorch describes these methods by overloads, which differ between its versions.
_Base: Any = ProcessGroup


@untraced
class ShoalProcessGroup(_Base):  # type: ignore[misc]
    """A process group of backend "shoal".

    Every method that starts an operation returns its ``Work`` at once; the arrays must be left alone until that is done. What
    is wrong with the arguments on this rank is raised here, and the other ranks hear of it.
    """

    def __init__(self, store: Store, rank: int, size: int, group: Group, timeout: timedelta, owns_job: bool) -> None:
        super().__init__(rank, size)
        self._store = store
        self._group = group
        self._timeout: timedelta = timeout
        self._owns_job = owns_job
        self._program = Place(group.name)
        self._gloo = gloo.make(store, group.session.incarnation, rank, size, timeout)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, self._gloo)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    # --- What PyTorch asks of a process group ---

    def get_group_store(self) -> Store:
        return self._store

    def getBackendName(self) -> str:
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        super().set_timeout(timeout)

    def shutdown(self) -> None:
        """Leaves the job if this process group has joined it, once this rank's operations are done."""
        super().shutdown()
        if self._owns_job:
            self._owns_job = False
            runtime.shutdown()

    def abort(self) -> None:
        """Ends the job for all ranks if this process group has joined it."""
        super().abort()
        if self._owns_job:
            self._owns_job = False
            runtime.abort(f"rank {self.rank()} has aborted its process group")

    # --- Reductions ---

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None) -> Any:
        tensors = as_list(tensors)
        options = options_of(AllreduceOptions, opts, op=op, timeout=timeout)
        operator = operator_of(tensors, options.reduceOp)
        if operator is None:
            return self._gloo.allreduce(tensors, options)
        return self._reduce_in_place("all_reduce", tensors, operator, options)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        options = options_of(AllreduceCoalescedOptions, opts)
        operator = operator_of(tensors, options.reduceOp)
        if operator is None:
            return self._gloo.allreduce_coalesced(list(tensors), options)
        if len(tensors) == 1:
            return self._reduce_in_place("all_reduce_coalesced", list(tensors), operator, options)
        together = joined(tensors)

        def plan(_: Group) -> Plan:
            return _then(operations.allreduce(together, operator, in_place=True), lambda: divide(together, tensors))

        return self._start("all_reduce_coalesced", options, list(tensors), plan)

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
            return self._gloo.reduce_scatter(outputs, [inputs], options)
        output = single(outputs)
        together = joined(inputs)
        if len({tensor.numel() for tensor in inputs}) == 1:
            return self._scatter_reduced("reduce_scatter", output, together, operator, options)
        begin = sum(tensor.numel() for tensor in inputs[: self.rank()])
        own = together[begin : begin + output.numel()]

        def plan(_: Group) -> Plan:
            return _then(operations.allreduce(together, operator, in_place=True), lambda: divide(own, [output]))

        return self._start("reduce_scatter", options, [output], plan)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        options = options_of(ReduceScatterOptions, opts)
        operator = operator_of([input], options.reduceOp)
        if operator is None:
            return self._gloo._reduce_scatter_base(output, input, options)
        return self._scatter_reduced("reduce_scatter_tensor", output, Flat(input).elements, operator, options)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        options = options_of(ReduceScatterOptions, opts)
        if operator_of(inputs, options.reduceOp) is None:
            return super().reduce_scatter_single_coalesced(outputs, inputs, options)
        return OperationWork.of_all(
            [self.reduce_scatter_single(*pair, options) for pair in zip(outputs, inputs, strict=True)]
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- Copies ---

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Any:
        tensors = as_list(tensors)
        options = options_of(BroadcastOptions, opts, root=root, timeout=timeout)
        flat = Flat(single(tensors))

        def plan(group: Group) -> Plan:
            root_rank = group.ranks[options.rootRank]
            return _then(operations.broadcast(group, flat.elements, root_rank, in_place=True), flat.finish)

        return self._start("broadcast", options, tensors, plan)

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        outputs = output_tensors if isinstance(input_tensors, torch.Tensor) else single(output_tensors)
        given = single(as_list(input_tensors))
        options = options_of(AllgatherOptions, opts, timeout=timeout)
        flat = Flat(given)

        def plan(_: Group) -> Plan:
            return operations.allgather_by_blocks(flat.elements, lambda data, blocks: fill(outputs, data, blocks))

        return self._start("all_gather", options, list(outputs), plan)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """``output``: of as many elements as the inputs of all ranks together, in their order."""
        flat = Flat(output)
        # The input may be a part of the output.
        given = apart(Flat(input).elements, flat.elements)

        def plan(group: Group) -> Plan:
            return _then(operations.allgather_into(group, given, flat.elements), flat.finish)

        return self._start("all_gather_into_tensor", options_of(AllgatherOptions, opts), [output], plan)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        return OperationWork.of_all([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        options = options_of(AllToAllOptions, opts, timeout=timeout)
        outputs, inputs = list(output_tensors), joined(input_tensors)
        splits = [Flat(tensor).elements.numel() for tensor in input_tensors]

        def plan(group: Group) -> Plan:
            return operations.alltoall_by_blocks(
                group, inputs, splits, lambda data, blocks: fill(outputs, data, blocks)
            )

        return self._start("all_to_all", options, outputs, plan)

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
        flat = Flat(output)
        given = apart(Flat(input).elements, flat.elements)
        splits = split_sizes(given, input, input_split_sizes, self.size())
        expected = split_sizes(flat.elements, output, output_split_sizes, self.size())

        def plan(group: Group) -> Plan:
            return _then(operations.alltoall_into(group, given, splits, flat.elements, expected), flat.finish)

        return self._start("all_to_all_single", options, [output], plan)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        options = options_of(BarrierOptions, opts, timeout=timeout)
        return self._start("barrier", options, [], lambda _: operations.barrier())

    # --- How they are done ---

    def _reduce_in_place(self, called: str, tensors: Tensors, operator: str, options: Any) -> OperationWork:
        flat = Flat(single(tensors))

        def plan(_: Group) -> Plan:
            return _then(operations.allreduce(flat.elements, operator, in_place=True), flat.finish)

        return self._start(called, options, list(tensors), plan)

    def _scatter_reduced(
        self, called: str, output: torch.Tensor, elements: torch.Tensor, operator: str, options: Any
    ) -> OperationWork:
        flat = Flat(output)

        def plan(group: Group) -> Plan:
            if flat.elements.numel() * group.size != elements.numel():
                raise ValueError(
                    f"the input has {elements.numel()} elements, but the output {flat.elements.numel()}, which should be one "
                    f"of {group.size} equal parts"
                )
            return _then(operations.reducescatter_into(group, elements, flat.elements, operator), flat.finish)

        return self._start(called, options, [output], plan)

    def _start(
        self, called: str, options: Any, results: list[torch.Tensor], plan: Callable[[Group], Plan]
    ) -> OperationWork:
        caller = places.current()
        place = (caller or self._program).operation()
        seconds = options.timeout.total_seconds()
        if seconds <= 0:
            seconds = self._timeout.total_seconds()
        name = None if caller is None else str(place)
        handle: Handle = collectives.submit(called, name, self._group, plan, seconds)
        return OperationWork([handle], results, place)


def create(options: Any, _: Any = None) -> ShoalProcessGroup:
    """What PyTorch calls to make a process group. ``options``: its ``_DistributedBackendOptions``."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    owns_job = not ranks and membership.join(options.store, rank, size)
    group = membership.group_of(ranks, options.group_id, options.timeout)
    return ShoalProcessGroup(options.store, rank, size, group, options.timeout, owns_job)


def _then(plan: Plan, finish: Callable[[], None]) -> Plan:
    """The plan, and after what it does with the result ``finish``."""

    def both(handle: Any) -> Any:
        outcome = plan.finish(handle)
        finish()
        return outcome

    return plan._replace(finish=both)
