"""The collective operations on arrays.

Each operation has four forms: ``f`` returns a new array, ``f_`` works in place, ``f_async`` and ``f_async_`` do the same
and return a Handle at once. Arrays are those of ``shoal.ops.arrays``: NumPy, PyTorch or any other on the CPU that speaks
DLPack; the in-place forms take NumPy and PyTorch. A new array is of the library and dtype of the one that was given; if
memory is not contiguous, an in-place form works on a temporary and copies it back in ``wait``.

Every member of the group calls the operation, with arguments that agree. Calls with a ``name`` are matched by it (and how
often it was used), so members may make them in different orders and from different threads; calls without one are
matched by their order in the group.

All raise TypeError and ValueError for arguments that are wrong on this rank. The other members then get an error too, except
if the name is invalid, since it is not known which operation was meant. They raise Mismatch if members disagree, PeerLost if
a member is gone, Timeout if nothing has moved for the group's timeout, and ShoalError for every other reason, such as a
member that failed before its part.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shoal.errors import ShoalError
from shoal.job import runtime, trace
from shoal.job.groups import Group, world
from shoal.ops import operations
from shoal.ops.handles import Handle, described
from shoal.ops.operations import Plan

# In bytes of UTF-8 (native/base/limits.h).
NAME_LIMIT = 1024


def allreduce(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """The elementwise ``op`` over the members: an array like ``x``.

    ``x``: same shape and dtype on every member, of any dimensions. ``op``: mean, sum (both not of bool), min, max or product.
    16-bit floating types are summed in float32. Sums and products of integers wrap; a mean of integers is an integer: the
    sum, wrapped, divided toward zero, as NCCL has it. The result has the same bits on every member and in every run.
    """
    return submit("allreduce", name, group, operations.allreduce, x, op, False).wait()


def allreduce_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """``allreduce`` in place: fills ``x`` and returns it."""
    return submit("allreduce_", name, group, operations.allreduce, x, op, True).wait()


def allreduce_async(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``allreduce`` that does not wait."""
    return submit("allreduce", name, group, operations.allreduce, x, op, False)


def allreduce_async_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``allreduce_`` that does not wait."""
    return submit("allreduce_", name, group, operations.allreduce, x, op, True)


def reducescatter(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """This member's rows of the elementwise ``op`` over the members.

    ``x``: same shape (n, ...) and dtype on every member. The rows are cut in the group's order; the first n mod size
    members get one more than the others.
    """
    return reducescatter_async(x, op, name, group).wait()


def reducescatter_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """``reducescatter`` in place: writes the result into this member's rows of ``x`` and returns a view of them.

    The other rows of ``x`` are unspecified afterwards.
    """
    return reducescatter_async_(x, op, name, group).wait()


def reducescatter_async(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``reducescatter`` that does not wait."""
    return submit("reducescatter", name, group, operations.reducescatter, x, op, False)


def reducescatter_async_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``reducescatter_`` that does not wait."""
    return submit("reducescatter_", name, group, operations.reducescatter, x, op, True)


def broadcast(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Any:
    """A new array with the elements that ``x`` has on rank ``root``.

    ``x``: same shape and dtype on every member; only the root's elements are read. ``root``: a rank of the job that is a
    member of the group.
    """
    return broadcast_async(x, root, name, group).wait()


def broadcast_(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Any:
    """``broadcast`` in place: fills ``x`` on every member but the root, and returns it."""
    return broadcast_async_(x, root, name, group).wait()


def broadcast_async(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Handle:
    """``broadcast`` that does not wait."""
    return submit("broadcast", name, group, operations.broadcast, x, root, False)


def broadcast_async_(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Handle:
    """``broadcast_`` that does not wait."""
    return submit("broadcast_", name, group, operations.broadcast, x, root, True)


def allgather(x: Any, name: str | None = None, group: Group | None = None) -> Any:
    """The members' arrays one after the other along the first dimension, in the group's order.

    ``x``: shape (n, ...); n may differ between members, the other dimensions and the dtype may not.
    """
    return allgather_async(x, name, group).wait()


def allgather_(x: Any, name: str | None = None, group: Group | None = None) -> Any:
    """``allgather`` in place: fills ``x`` and returns it.

    ``x``: shape (size * n, ...), the same on every member. This member's n rows of it, at its place in the group's
    order, are what it gives; the others are overwritten.
    """
    return allgather_async_(x, name, group).wait()


def allgather_async(x: Any, name: str | None = None, group: Group | None = None) -> Handle:
    """``allgather`` that does not wait."""
    return submit("allgather", name, group, operations.allgather, x)


def allgather_async_(x: Any, name: str | None = None, group: Group | None = None) -> Handle:
    """``allgather_`` that does not wait."""
    return submit("allgather_", name, group, operations.allgather_in_place, x)


def alltoall(x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None) -> Any:
    """The rows that the members have for this one, one member after the other in the group's order.

    ``x``: shape (n, ...); n may differ between members, the other dimensions and the dtype may not. ``splits``: how many
    rows each member gets, in the group's order, n in all; default: the same number each. ``Handle.splits`` of the
    asynchronous form tells how many came from each.
    """
    return alltoall_async(x, splits, name, group).wait()


def alltoall_(x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None) -> Any:
    """``alltoall`` in place: replaces ``x`` and returns it. As many rows must come in as go out."""
    return alltoall_async_(x, splits, name, group).wait()


def alltoall_async(
    x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None
) -> Handle:
    """``alltoall`` that does not wait."""
    return submit("alltoall", name, group, operations.alltoall, x, splits, False)


def alltoall_async_(
    x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None
) -> Handle:
    """``alltoall_`` that does not wait."""
    return submit("alltoall_", name, group, operations.alltoall, x, splits, True)


def barrier(name: str | None = None, group: Group | None = None) -> None:
    """Returns once every member has called it."""
    barrier_async(name, group).wait()


def barrier_async(name: str | None = None, group: Group | None = None) -> Handle:
    """``barrier`` that does not wait."""
    return submit("barrier", name, group, operations.barrier)


def fail(reason: str, name: str | None = None, group: Group | None = None) -> None:
    """Opens an operation as failed on this rank: the other members' calls raise an error that says ``reason``.

    For callers that find out before they submit that they cannot.
    """
    chosen = world() if group is None else _of_current_job(group)
    chosen.session.engine.submit_failed(chosen.number, "" if name is None else _checked_name(name), reason)


def submit(
    operation: str,
    name: str | None,
    group: Group | None,
    plan: Callable[..., Plan],
    *arguments: Any,
    timeout: float | None = None,
) -> Handle:
    """Submits what ``plan`` makes of the group and the arguments. If it cannot, the other members hear why.

    ``operation``: what it is called in messages. ``timeout``: as the group's, for this operation alone.
    """
    chosen = world() if group is None else _of_current_job(group)
    session, number = chosen.session, chosen.number
    wire_name = "" if name is None else _checked_name(name)
    try:
        planned = plan(chosen, *arguments)
    except Exception as error:
        with suppress(RuntimeError):
            session.engine.submit_failed(number, wire_name, f"{operation}: {type(error).__name__}: {error}")
        if isinstance(error, (TypeError, ValueError)):
            # Not its own type, which may want other arguments.
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{described(operation, name, session)}: {error}") from error
        raise
    submitted_ns = time.monotonic_ns() if trace.recording() else 0
    # In one go, which is faster than field by field.
    _, collective, op, dtype, shape, given, output, root, splits, _ = planned
    limit = chosen.timeout if timeout is None else timeout
    try:
        native = session.engine.submit(
            collective, number, wire_name, op, dtype, shape, splits, root, given, output, limit
        )
    except RuntimeError as error:
        raise ShoalError(f"{described(operation, name, session)}: {error}") from error
    return Handle(native, operation, name, session, planned, submitted_ns)


def _of_current_job(group: Group) -> Group:
    if not isinstance(group, Group):
        raise TypeError(f"group must be a shoal.Group, got {type(group).__name__}: make one with shoal.Group(ranks)")
    if group.session is not runtime.current():
        raise ShoalError(f"{group} was made before the last shoal.shutdown(): make it again after shoal.init()")
    return group


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is a text, got {type(name).__name__}: pass str(...) of it")
    if not name or name.startswith("#"):
        raise ValueError(f"a name must not be empty or begin with '#', which unnamed operations use: {name!r}")
    if len(name.encode()) > NAME_LIMIT:
        raise ValueError(f"a name has at most {NAME_LIMIT} bytes of UTF-8: {name[:40]!r}...")
    return name
