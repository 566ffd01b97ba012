"""How one operation on a tensor is submitted: its name, the memory it lies in, and what is done with its result.

Tensors of CUDA devices go through memory of the host, as those of the backend "shoal" do. Names are those of Horovod, with the
kind in front, so that an all-reduce and a broadcast may have the same. Operations without a name are matched by their
order among those of their kind in the process set.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from shoal import _native
from shoal.errors import ShoalError
from shoal.horovod.common import handles
from shoal.horovod.common.exceptions import HorovodInternalError, InvalidCallError, UnsupportedTensorError
from shoal.job.groups import Group
from shoal.job.per_job import PerJob
from shoal.ops import collectives, submissions
from shoal.ops.operations import Plan
from shoal.ops.submissions import Pending
from shoal.torch import accelerators
from shoal.torch.staging import Transfer, Transfers

_transfers: PerJob[Transfers] = PerJob(
    lambda session: Transfers(session.settings.waits_in_stream(by_default=False)),
)

Change = Callable[[torch.Tensor], torch.Tensor]

# How an operation on a tensor of the host is planned.
OfHost = Callable[[Group, torch.Tensor], Plan]
# The same; True: in place.
InPlaceOrNot = Callable[[Group, torch.Tensor, bool], Plan]


def in_place(
    kind: str,
    name: str | None,
    group: Group,
    tensor: torch.Tensor,
    plan: InPlaceOrNot,
    before: Change | None = None,
    reads: bool = True,
) -> Pending:
    """Starts an operation that fills the tensor. ``plan``: of the tensor, or of what has its elements on the host.

    ``before``: is done with the tensor first, in place. ``reads``: whether what the tensor has is needed.
    """

    def prepare(given: torch.Tensor, transfer: Transfer | None) -> Callable[[Group], Plan]:
        if transfer is None:
            return lambda group: plan(group, given, True)
        host = transfer.mirror(given, reads)
        transfer.returns((given, host))
        return lambda group: plan(group, host, True)

    return _start(kind, name, group, tensor, before, prepare)


def anew(
    kind: str,
    name: str | None,
    group: Group,
    tensor: torch.Tensor,
    plan: InPlaceOrNot,
    before: Change | None = None,
    reads: bool = True,
) -> Pending:
    """As ``in_place``, but the result is a new tensor of the same shape on the same device."""

    def prepare(given: torch.Tensor, transfer: Transfer | None) -> Callable[[Group], Plan]:
        if transfer is None:
            return lambda group: plan(group, given, False)
        # What the tensor has is not there before the operation begins, so it cannot be copied when that is planned.
        host, made = transfer.mirror(given, reads), torch.empty_like(given)
        transfer.returns((made, host))
        return lambda group: _giving(made, plan(group, host, True))

    return _start(kind, name, group, tensor, before, prepare)


def apart(
    kind: str,
    name: str | None,
    group: Group,
    tensor: torch.Tensor,
    plan: OfHost,
    before: Change | None = None,
) -> Pending:
    """Starts an operation whose result has another shape. It is on the host."""

    def prepare(given: torch.Tensor, transfer: Transfer | None) -> Callable[[Group], Plan]:
        if transfer is None:
            return lambda group: plan(group, given)
        host = transfer.mirror(given, read=True)
        transfer.returns()
        return lambda group: plan(group, host)

    return _start(kind, name, group, tensor, before, prepare)


def _giving(made: torch.Tensor, planned: Plan) -> Plan:
    def finish(handle: _native.Handle) -> torch.Tensor:
        planned.finish(handle)
        return made

    return planned._replace(finish=finish)


def adasum(name: str | None, group: Group, tensor: torch.Tensor, before: Change, fills: bool) -> Pending:
    """Starts Adasum of what ``before`` makes of the tensor. Its result is on the host. ``fills``: it may be in place there.

    Other than an operation of the core's it waits for what a device has still to do, and for its copy.
    """
    wire_name = _wire_name("allreduce", name)

    def start() -> Pending:
        call = collectives.allreduce_async_ if fills else collectives.allreduce_async
        try:
            with submissions.failing_everywhere("allreduce", wire_name, group):
                host = before(_plain(tensor)).cpu()
            return call(host, "adasum", wire_name, group)
        except (ShoalError, TypeError) as error:
            raise _to_horovod(error) from error

    return start() if name is None else handles.start_named(wire_name, group, start)


def barrier(group: Group, plan: Callable[[Group], Plan]) -> Pending:
    """Starts what has no tensor."""
    return _submitted("barrier", "barrier", group, plan, None)


def _start(
    kind: str,
    name: str | None,
    group: Group,
    tensor: torch.Tensor,
    before: Change | None,
    prepare: Callable[[torch.Tensor, Transfer | None], Callable[[Group], Plan]],
) -> Pending:
    wire_name = _wire_name(kind, name)

    def start() -> Pending:
        # What is wrong with the tensor on this rank, the others hear too.
        try:
            given = _plain(tensor)
            if before is not None:
                given = before(given)
            device = accelerators.of([given])
            transfer = None if device is None else _transfers.of(group.session).begin(device)
            plan = prepare(given, transfer)
        except Exception as error:
            _submitted(kind, wire_name, group, submissions.failing(error), None)
            raise
        return _submitted(kind, wire_name, group, plan, transfer)

    return start() if name is None else handles.start_named(wire_name, group, start)


def _submitted(kind: str, name: str, group: Group, plan: Callable[[Group], Plan], transfer: Transfer | None) -> Pending:
    try:
        return submissions.submit(kind, name, group, plan, None, transfer)
    except (ShoalError, TypeError) as error:
        raise _to_horovod(error) from error
    except ValueError as error:
        # Its text has become that of a plain one.
        if isinstance(error.__cause__, InvalidCallError):
            raise InvalidCallError(str(error)) from error
        raise


def _to_horovod(error: ShoalError | TypeError) -> Exception:
    return (HorovodInternalError if isinstance(error, ShoalError) else UnsupportedTensorError)(str(error))


def failing_everywhere(kind: str, name: str, group: Group) -> AbstractContextManager[None]:
    """What is raised in here is told to the other ranks, which wait for the operation of that name, too."""
    return submissions.failing_everywhere(kind, _wire_name(kind, name), group)


def _wire_name(kind: str, name: str | None) -> str:
    return f"{kind} without a name" if name is None else f"{kind}.{name}"


def _plain(tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is wanted, got {type(tensor).__name__}: pass torch.as_tensor(...) of it")
    # Here, since a sparse tensor of a device could not be copied.
    if tensor.layout != torch.strided:
        raise TypeError(
            f"a tensor of layout {tensor.layout} is not supported, only dense ones: pass tensor.to_dense(), or take "
            "hvd.sparse_allreduce_async"
        )
    return tensor.detach()
