"""The process group: PyTorch's collectives in terms of Shoal's.

Tensors are on the CPU or, where Shoal has the operation itself, on a CUDA device too (shoal/torch/staging.py). ``send`` and
``recv`` go by a gloo group of the same ranks (point_to_point.py). Devices that the program wants another backend for have that
(by_device.py).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    PrefixStore,
    ProcessGroup,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
)

from shoal.job import runtime, unheard
from shoal.job.groups import Group
from shoal.ops import operations, submissions
from shoal.ops.operations import Plan
from shoal.torch import accelerators, versions
from shoal.torch.c10d import builtin_hooks, call_sites, forgotten, gloo, inherited, membership, reductions, sparse
from shoal.torch.c10d.arguments import Tensors, as_list, options_of, single, split_sizes
from shoal.torch.c10d.base import Base, with_all_names
from shoal.torch.c10d.by_device import NAME, Others, by_device
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.c10d.point_to_point import PointToPoint
from shoal.torch.c10d.tensors import Flat, apart, divided_by, fill, joined
from shoal.torch.c10d.work import NO_TIMEOUT, OperationWork
from shoal.torch.compiled import untraced_class
from shoal.torch.known_dtypes import count
from shoal.torch.staging import Transfer, Transfers


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
        self._program = CallSite(group.name)
        self._gloo = gloo.make(store, group.session, rank, size, timeout)
        self._transfers = Transfers(group.session.settings.waits_in_stream(by_default=True))
        self._messages = PointToPoint(self._gloo, store, group, timeout)
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
        self._messages.set_timeout(timeout)
        self.others.set_timeout(timeout)
        super().set_timeout(timeout)

    def shutdown(self) -> None:
        """Leaves the job if this process group has joined it, once this rank's operations are done."""
        self._messages.close()
        self.others.shutdown()
        super().shutdown()
        if self._leaves_job():
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
        self._messages.close()
        self.others.abort()
        super().abort()
        if self._leaves_job():
            runtime.abort(f"rank {self.rank()} has aborted its process group")

    def _leaves_job(self) -> bool:
        """Whether this process group is to leave the job now: it has joined it, and the program has not left it since."""
        owns_job, self._owns_job = self._owns_job, False
        return owns_job and runtime.is_initialized() and runtime.current() is self._group.session

    # --- Reductions ---

    @by_device
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None) -> Any:
        options = options_of(AllreduceOptions, opts, op=op, timeout=timeout)
        return self._reduce_in_place("all_reduce", tensors, options)

    @by_device
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        options = options_of(AllreduceCoalescedOptions, opts)
        if len(tensors) == 1:
            return self._reduce_in_place("all_reduce_coalesced", tensors, options)
        try:
            operator = _operator("all_reduce_coalesced", tensors, options)
            transfer = self._transfer(tensors)
            together = joined(tensors, transfer)
            places = [tensor.detach() for tensor in tensors]
        except Exception as error:
            self._raise_everywhere("all_reduce_coalesced", options, error)

        def plan(group: Group) -> Plan:
            return divided_by(reductions.allreduce(group, Flat(together), operator), together, places, transfer)

        return self._start("all_reduce_coalesced", options, list(tensors), plan, transfer)

    @by_device
    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = ReduceOp.SUM,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        options = options_of(ReduceOptions, opts, op=op, root=root, timeout=timeout)
        try:
            tensor = single(as_list(tensors))
            operator = _operator("reduce", [tensor], options)
            transfer = self._transfer([tensor])
            flat = Flat(tensor, transfer)
        except Exception as error:
            self._raise_everywhere("reduce", options, error)

        def plan(group: Group) -> Plan:
            _root(group, options)
            return reductions.reduce(group, flat, operator, options.rootRank)

        return self._start("reduce", options, [tensor], plan, transfer)

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
        options = options_of(ReduceScatterOptions, opts, op=op, timeout=timeout)
        try:
            output = single(as_list(output_tensors))
            inputs = input_tensors if isinstance(output_tensors, torch.Tensor) else single(input_tensors)
            _check_length("inputs", inputs, self.size())
            if output.numel() != inputs[self.rank()].numel():
                raise ValueError(
                    f"the output has {output.numel()} elements, but rank {self.rank()}'s part of the inputs "
                    f"{inputs[self.rank()].numel()}"
                )
            operator = _operator("reduce_scatter", [output, *inputs], options)
            transfer = self._transfer([output, *inputs])
            together = joined(inputs, transfer)
            flat = Flat(output, transfer, read=False)
        except Exception as error:
            self._raise_everywhere("reduce_scatter", options, error)
        if len({tensor.numel() for tensor in inputs}) == 1:
            return self._scatter_reduced("reduce_scatter", output, flat, together, operator, options, transfer)
        begin = sum(count(tensor) for tensor in inputs[: self.rank()])
        own = together[begin : begin + count(output)]
        place = output.detach()

        def plan(group: Group) -> Plan:
            return divided_by(reductions.allreduce(group, Flat(together), operator), own, [place], transfer)

        return self._start("reduce_scatter", options, [output], plan, transfer)

    @by_device
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        options = options_of(ReduceScatterOptions, opts)
        try:
            operator = _operator("reduce_scatter_tensor", [output, input], options)
            transfer = self._transfer([output, input])
            elements = Flat(input, transfer).elements
            flat = Flat(output, transfer, read=False)
        except Exception as error:
            self._raise_everywhere("reduce_scatter_tensor", options, error)
        return self._scatter_reduced("reduce_scatter_tensor", output, flat, elements, operator, options, transfer)

    @by_device
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        options = options_of(ReduceScatterOptions, opts)
        return self._coalesced("reduce_scatter_tensor", options, self.reduce_scatter_single, outputs, inputs)

    # --- Copies ---

    @by_device
    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Any:
        options = options_of(BroadcastOptions, opts, root=root, timeout=timeout)
        try:
            tensor = single(as_list(tensors))
            transfer = self._transfer([tensor])
            flat = Flat(tensor, transfer, read=options.rootRank == self.rank())
        except Exception as error:
            self._raise_everywhere("broadcast", options, error)

        def plan(group: Group) -> Plan:
            root = group.ranks[_root(group, options)]
            planned = operations.broadcast(group, flat.elements, root, in_place=True)
            return flat.left_by(planned) if root == group.session.rank else flat.filled_by(planned)

        return self._start("broadcast", options, [tensor], plan, transfer)

    @by_device
    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        options = options_of(AllgatherOptions, opts, timeout=timeout)
        try:
            outputs = output_tensors if isinstance(input_tensors, torch.Tensor) else single(output_tensors)
            given = single(as_list(input_tensors))
            transfer = self._transfer([given, *outputs])
            flat = Flat(given, transfer)
            flats = [Flat(output, transfer, read=False) for output in outputs]
        except Exception as error:
            self._raise_everywhere("all_gather", options, error)

        def plan(group: Group) -> Plan:
            return operations.allgather_by_blocks(group, flat.elements, lambda data, blocks: fill(flats, data, blocks))

        return self._start("all_gather", options, list(outputs), plan, transfer)

    @by_device
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """``output``: of as many elements as the inputs of all ranks together, in their order."""
        options = options_of(AllgatherOptions, opts)
        try:
            transfer = self._transfer([output, input])
            flat = Flat(output, transfer, read=False)
            # The input may be a part of the output.
            given = apart(Flat(input, transfer).elements, flat.elements)
        except Exception as error:
            self._raise_everywhere("all_gather_into_tensor", options, error)

        def plan(group: Group) -> Plan:
            return flat.filled_by(operations.allgather_into(group, given, flat.elements))

        return self._start("all_gather_into_tensor", options, [output], plan, transfer)

    @by_device
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        options = options_of(AllgatherOptions, opts)
        return self._coalesced("all_gather_into_tensor", options, self.all_gather_single, outputs, inputs)

    @by_device
    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        options = options_of(AllToAllOptions, opts, timeout=timeout)
        try:
            outputs = list(output_tensors)
            transfer = self._transfer([*outputs, *input_tensors])
            inputs = joined(input_tensors, transfer)
            splits = [count(tensor) for tensor in input_tensors]
            flats = [Flat(output, transfer, read=False) for output in outputs]
        except Exception as error:
            self._raise_everywhere("all_to_all", options, error)

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
        try:
            transfer = self._transfer([output, input])
            flat = Flat(output, transfer, read=False)
            given = apart(Flat(input, transfer).elements, flat.elements)
        except Exception as error:
            self._raise_everywhere("all_to_all_single", options, error)

        def plan(group: Group) -> Plan:
            splits = split_sizes(given, input, input_split_sizes, group.size)
            expected = split_sizes(flat.elements, output, output_split_sizes, group.size)
            return flat.filled_by(operations.alltoall_into(group, given, splits, flat.elements, expected))

        return self._start("all_to_all_single", options, [output], plan, transfer)

    @by_device
    def allgather_coalesced(self, output_lists: Any, input_list: Tensors, opts: Any = None) -> Any:
        """``output_lists``: one list for each rank, with a tensor for each of its inputs."""
        options = options_of(AllgatherOptions, opts)

        def gather(*arguments: Any) -> Any:
            *outputs, own, _ = arguments
            return self.allgather([outputs], [own], options)

        return self._coalesced("all_gather", options, gather, *output_lists, input_list)

    @by_device
    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        options = options_of(GatherOptions, opts, root=root, timeout=timeout)
        here = options.rootRank == self.rank()
        try:
            given = single(as_list(input_tensors))
            outputs = output_tensors if isinstance(input_tensors, torch.Tensor) or not here else single(output_tensors)
            transfer = self._transfer([given, *outputs])
            flat = Flat(given, transfer)
            flats = [Flat(output, transfer, read=False) for output in outputs]
        except Exception as error:
            self._raise_everywhere("gather", options, error)

        def take(data: memoryview, blocks: list[int]) -> None:
            if here:
                fill(flats, data, blocks)

        def plan(group: Group) -> Plan:
            splits = [0] * group.size
            splits[_root(group, options)] = flat.elements.numel()
            _check_length("outputs", flats, group.size if here else 0)
            plan = operations.alltoall_by_blocks(group, flat.elements, splits, take)
            return plan._replace(root=options.rootRank)

        return self._start("gather", options, list(outputs), plan, transfer)

    @by_device
    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        options = options_of(ScatterOptions, opts, root=root, timeout=timeout)
        here = options.rootRank == self.rank()
        try:
            output = single(as_list(output_tensors))
            inputs = input_tensors if isinstance(output_tensors, torch.Tensor) or not here else single(input_tensors)
            transfer = self._transfer([output, *inputs])
            flat = Flat(output, transfer, read=False)
            elements = joined(inputs, transfer) if inputs else flat.elements[:0]
        except Exception as error:
            self._raise_everywhere("scatter", options, error)

        def take(data: memoryview, blocks: list[int]) -> None:
            fill([flat], data, [sum(blocks)])

        def plan(group: Group) -> Plan:
            _root(group, options)
            _check_length("inputs", inputs, group.size if here else 0)
            splits = [count(tensor) for tensor in inputs] or [0] * group.size
            return operations.alltoall_by_blocks(group, elements, splits, take)._replace(root=options.rootRank)

        return self._start("scatter", options, [output], plan, transfer)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        options = options_of(BarrierOptions, opts, timeout=timeout)
        return self._start("barrier", options, [], operations.barrier, None)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Raises Timeout, on every rank, which names those that are missing (all of them in any case)."""
        self.barrier(timeout=timeout).wait()

    # --- Point to point, for tensors on the CPU ---

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> OperationWork:
        _on_cpu("send", tensors)
        return self._messages.send(single(tensors), dstRank, tag)

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> OperationWork:
        _on_cpu("recv", tensors)
        return self._messages.recv(single(tensors), srcRank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> OperationWork:
        _on_cpu("recv", tensors)
        return self._messages.recv(single(tensors), None, tag)

    # --- How they are done ---

    def _reduce_in_place(self, called: str, tensors: Any, options: Any) -> OperationWork:
        try:
            tensor = single(as_list(tensors))
            if not tensor.is_sparse:
                operator = _operator(called, [tensor], options)
                transfer = self._transfer([tensor])
                flat = Flat(tensor, transfer)
        except Exception as error:
            self._raise_everywhere(called, options, error)
        if tensor.is_sparse:
            return self._start(
                called, options, [tensor], lambda group: sparse.allreduce(group, tensor, options.reduceOp), None
            )

        def plan(group: Group) -> Plan:
            return reductions.allreduce(group, flat, operator)

        return self._start(called, options, [tensor], plan, transfer)

    def _scatter_reduced(
        self,
        called: str,
        output: torch.Tensor,
        flat: Flat,
        elements: torch.Tensor,
        operator: reductions.Operator,
        options: Any,
        transfer: Transfer | None,
    ) -> OperationWork:
        def plan(group: Group) -> Plan:
            return reductions.reduce_scatter(group, elements, flat, operator)

        return self._start(called, options, [output], plan, transfer)

    def _coalesced(self, called: str, options: Any, start: Callable[..., Any], *lists: Tensors) -> OperationWork:
        """One operation for each place in the lists. Where one cannot begin, those after it are told to have failed too: the
        other ranks have begun as many, and what is called next would meet the wrong one.
        """
        works: list[OperationWork] = []
        told = 0
        try:
            if len({len(tensors) for tensors in lists}) > 1:
                raise ValueError(
                    f"{called} on {self._messages.own_name}: lists of {[len(tensors) for tensors in lists]} tensors, which "
                    "should be as many each"
                )
            for arguments in zip(*lists, strict=True):
                told = len(works) + 1
                works.append(start(*arguments, options))
        except Exception as error:
            for _ in range(max(map(len, lists)) - told):
                with suppress(type(error)):
                    self._raise_everywhere(called, options, error)
            raise
        return OperationWork.of_all(works)

    def _raise_everywhere(self, called: str, options: Any, error: Exception) -> NoReturn:
        """What is wrong with the arguments of an operation is told to the other ranks, which wait for it, too."""

        self._start(called, options, [], submissions.failing(error), None)
        raise error

    def _transfer(self, tensors: Tensors) -> Transfer | None:
        """For an operation on these tensors; None if they are on the CPU."""
        device = accelerators.of(tensors)
        return None if device is None else self._transfers.begin(device, waits=call_sites.current() is None)

    def _start(
        self,
        called: str,
        options: Any,
        results: list[torch.Tensor],
        plan: Callable[[Group], Plan],
        transfer: Transfer | None,
    ) -> OperationWork:
        caller = call_sites.current()
        call_site = (caller or self._program).operation()
        timeout = options.timeout
        if timeout <= NO_TIMEOUT:
            timeout = self._timeout
        name = None if caller is None else str(call_site)
        if unheard.failed and caller is None:
            failure = unheard.take_first()
            plan = plan if failure is None else submissions.failing(failure)
        handle = submissions.submit(called, name, self._group, plan, timeout.total_seconds(), transfer)
        return OperationWork([handle], results, call_site, timeout)


def _operator(called: str, tensors: Tensors, options: Any) -> reductions.Operator:
    """Raises TypeError if it has no meaning for these tensors."""
    operator = reductions.operator_of(tensors, options.reduceOp)
    if operator.exchanges:
        _on_cpu(f"{called} with {options.reduceOp}", tensors)
    return operator


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


def _root(group: Group, options: Any) -> int:
    """The root's index in the group. Raises ValueError if there is none."""
    root: int = options.rootRank
    if root not in range(group.size):
        raise ValueError(f"the root has rank {root}, but the group only {group.size} ranks")
    return root


def _check_length(called: str, tensors: Sequence[Any], members: int) -> None:
    if len(tensors) != members:
        raise ValueError(
            f"the list of {called} has {len(tensors)} tensors, but should have {members}, one for each rank"
        )


def _on_cpu(called: str, tensors: Tensors) -> None:
    """Raises TypeError for tensors of an accelerator."""
    if accelerators.of(tensors) is not None:
        raise TypeError(
            f'{called} of a tensor on {tensors[0].device}: a process group of backend "shoal" does that for tensors on the CPU '
            'only: pass tensor.cpu(), or a group of another backend, such as new_group(backend="nccl")'
        )
