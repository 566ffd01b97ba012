"""Shoal for the gradients of PyTorch's DistributedDataParallel, and its process group for everything else.

model = torch.nn.parallel.DistributedDataParallel(model)
model.register_comm_hook(None, shoal.torch.comm_hook)
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ReduceOp

from shoal.job import runtime, unheard
from shoal.job.groups import Group
from shoal.job.per_job import PerJob
from shoal.ops import operations, submissions
from shoal.ops.operations import Plan
from shoal.torch import accelerators
from shoal.torch.c10d import membership, sparse
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.c10d.tensors import Flat
from shoal.torch.c10d.work import OperationWork
from shoal.torch.hierarchy import Hierarchy
from shoal.torch.staging import Transfer, Transfers

# The group of all ranks that is used where none is given. Not that of the program's own operations, which may be called
# by another thread: operations without a name are matched by their order in their group.
_everyone = PerJob(lambda session: Group(range(session.size), name="comm_hook"))

# Of each group that hooks have used: for callbacks that follow its operations, in their order, and for its tensors.
_used: WeakKeyDictionary[Group, tuple[CallSite, Transfers]] = WeakKeyDictionary()


def comm_hook(
    state: Group | Hierarchy | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook: the mean of the bucket's gradients over all ranks, or over ``state``, in the bucket's own memory.

    Joins the job at the first bucket, if this process has not, through the store of the default process group.
    ``state``: a ``shoal.Group`` of the ranks that have the model; None: all ranks of the default process group; a
    ``shoal.torch.Hierarchy``: all of them, first inside their nodes, then between these.

    Every rank gets the same bits, those of ``shoal.allreduce(op="mean")``: 16-bit gradients are summed in float32. May be
    wrapped, as by ``fp16_compress_wrapper``. What goes wrong on any rank is raised by ``loss.backward()`` on every rank; it is
    a RuntimeError whose text has the kind of the error: Mismatch for buckets of different sizes or dtypes, PeerLost, Timeout.
    Gradients are on the CPU or a CUDA device; those go through pinned memory of the host, beside the backward pass. Sparse ones
    are on the CPU, and each parameter's are a bucket.
    Raises TypeError for a ``state`` that is no group and for gradients that are anywhere else, ConfigurationError if this process
    has joined another job than that of the process group.
    """
    if isinstance(state, Hierarchy) and state.members > 1:
        return _in_nodes(state, bucket)
    return _plainly(state, bucket)


def _in_nodes(
    hierarchy: Hierarchy,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    if bucket.index() == 0:
        hierarchy.begin_pass()
    is_dense = bucket.buffer().layout == torch.strided
    future = hierarchy.average(bucket.buffer()) if is_dense else _plainly(None, bucket)
    if bucket.is_last():
        hierarchy.end_pass()
    return future


def _plainly(
    state: Group | Hierarchy | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    group = _group(None if isinstance(state, Hierarchy) else state)
    call_site, transfers = _operations(group)
    called = f"averaging bucket {bucket.index()} of the gradients"
    gradients = bucket.buffer()
    transfer: Transfer | None = None
    if gradients.layout == torch.strided:
        with submissions.failing_everywhere(called, None, group):
            device = accelerators.of([gradients])
            transfer = None if device is None else transfers.begin(device)
            flat = Flat(gradients, transfer)

        def plan(group: Group) -> Plan:
            return flat.filled_by(operations.allreduce(group, flat.elements, "mean", in_place=True))
    else:

        def plan(group: Group) -> Plan:
            return sparse.allreduce(group, gradients, ReduceOp.AVG)

    handle = submissions.submit(called, None, group, _unless_one_has_failed(plan), None, transfer)
    work = OperationWork([handle], [gradients], call_site.operation())
    mean: torch.futures.Future[torch.Tensor] = work.get_future().then(_first)
    return mean


def _unless_one_has_failed(plan: Callable[[Group], Plan]) -> Callable[[Group], Plan]:
    """Raises what nobody has heard of, so that the other ranks hear of it too."""

    def checked(group: Group) -> Plan:
        unheard.raise_first()
        return plan(group)

    return checked


def _first(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]


def _group(state: Group | None) -> Group:
    if state is None:
        return _group_of_everyone()
    if not isinstance(state, Group):
        raise TypeError(
            f"the state of shoal.torch.comm_hook is a shoal.Group, or None for all ranks, got {type(state).__name__}: call "
            "shoal.torch.init(), then shoal.Group(ranks) on every rank"
        )
    return state


def _group_of_everyone() -> Group:
    membership.join_default()
    return _everyone.of(runtime.current())


def _operations(group: Group) -> tuple[CallSite, Transfers]:
    found = _used.get(group)
    if found is None:
        found = _used[group] = (
            CallSite(f"hook {group}"),
            Transfers(group.session.settings.waits_in_stream(by_default=True)),
        )
    return found
