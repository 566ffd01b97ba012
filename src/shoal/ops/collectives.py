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

from shoal import _native
from shoal.errors import ShoalError
from shoal.job import runtime, trace
from shoal.job.groups import Group, world
from shoal.ops import operations
from shoal.ops.handles import Handle, described
from shoal.ops.operations import Plan

# In bytes of UTF-8 (native/base/limits.h).
NAME_LIMIT = 1024


def allreduce(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """The elementwise ``op`` over the members: a new array, of the shape, dtype and library of ``x``.

    It has the same bits on every member, and in every run that places ranks on nodes in the same way
    (docs/operations.md, Order and rounding). 16-bit floating types are summed in float32. Sums and products of integers
    wrap; a mean of integers is an integer: the sum, wrapped, divided toward zero, as NCCL has it.

    Arguments:
        x: an array on the CPU, of NumPy, PyTorch or any library that speaks DLPack, or Python numbers, of any number of
            dimensions; same shape and dtype on every member. dtypes: float16, bfloat16, float32, float64, int8, int16,
            int32, int64, uint8, uint16, uint32, uint64, bool.
        op: "mean" or "sum" (neither of bool), "min", "max" or "product"; the same on every member. "adasum": a sum that
            does not grow where the arrays point the same way (shoal.ops.adasum), of floating dtypes, for 2, 4, 8 ...
            members.
        name: matches the members' calls: a text of 1 to 1024 bytes of UTF-8 that does not begin with "#". None: calls
            without a name are matched by their order in the group, so they come from one thread.
        group: the members, of which this rank is one. None: all ranks of the job.

    Raises:
        TypeError: ``x`` is no such array; a sum or mean of bool; ``name`` or ``group`` is of another type.
        ValueError: there is no such ``op``; ``name`` is not allowed; this rank is no member of ``group``.
        Mismatch: members disagree on the operation, ``op``, shape or dtype, or wait for each other in a circle.
        PeerLost: a rank or server that is needed is gone, or has left.
        Timeout: nothing has moved for so many seconds as the group's ``timeout`` says.
        ShoalError: this process is in no job; ``group`` is of an earlier one; whatever else made the operation fail,
            such as another member's arguments.
    """
    return _allreduce("allreduce", x, op, name, group, in_place=False).wait()


def allreduce_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """``allreduce`` in place: fills ``x`` and returns it.

    Arguments:
        x: a NumPy array or PyTorch tensor on the CPU that can be written to; same shape and dtype on every member, and
            the dtypes of ``allreduce``. After an error its elements are unspecified.
        op, name, group: as for ``allreduce``.

    Raises:
        TypeError: as ``allreduce``, and if ``x`` cannot be written to, or is an expanded tensor.
        ValueError, Mismatch, PeerLost, Timeout, ShoalError: as ``allreduce``.
    """
    return _allreduce("allreduce_", x, op, name, group, in_place=True).wait()


def allreduce_async(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``allreduce`` that does not wait: returns a Handle at once, whose ``wait`` returns the new array.

    Arguments:
        x, op, name, group: as for ``allreduce``. ``x`` must not be changed until ``Handle.wait`` has returned.

    Raises:
        TypeError, ValueError: as ``allreduce``.
        ShoalError: this process is in no job, or ``group`` is of an earlier one. ``Handle.wait`` raises the rest.
    """
    return _allreduce("allreduce", x, op, name, group, in_place=False)


def allreduce_async_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``allreduce_`` that does not wait: returns a Handle at once, whose ``wait`` returns ``x``.

    Arguments:
        x, op, name, group: as for ``allreduce_``. ``x`` must be neither read nor changed until ``Handle.wait`` has
            returned.

    Raises:
        TypeError, ValueError: as ``allreduce_``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return _allreduce("allreduce_", x, op, name, group, in_place=True)


def reducescatter(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """This member's rows of the elementwise ``op`` over the members: a new array of the dtype and library of ``x``.

    The rows are cut in the group's order; the first n mod size members get one more than the others.

    Arguments:
        x: an array of ``allreduce``'s libraries and dtypes, of shape (n, ...); same shape and dtype on every member.
        op, name, group: as for ``allreduce``.

    Raises:
        ValueError: as ``allreduce``, and if ``x`` has no dimension.
        TypeError, Mismatch, PeerLost, Timeout, ShoalError: as ``allreduce``.
    """
    return reducescatter_async(x, op, name, group).wait()


def reducescatter_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """``reducescatter`` in place: writes the result into this member's rows of ``x`` and returns a view of them.

    Arguments:
        x: as for ``allreduce_``, of shape (n, ...). Its other rows are unspecified afterwards.
        op, name, group: as for ``allreduce``.

    Raises:
        ValueError: as ``reducescatter``.
        TypeError, Mismatch, PeerLost, Timeout, ShoalError: as ``allreduce_``.
    """
    return reducescatter_async_(x, op, name, group).wait()


def reducescatter_async(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``reducescatter`` that does not wait: returns a Handle at once, whose ``wait`` returns the new array.

    Arguments:
        x, op, name, group: as for ``reducescatter``. ``x`` must not be changed until ``Handle.wait`` has returned.

    Raises:
        TypeError, ValueError: as ``reducescatter``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("reducescatter", name, group, operations.reducescatter, x, op, False)


def reducescatter_async_(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Handle:
    """``reducescatter_`` that does not wait: returns a Handle at once, whose ``wait`` returns the view.

    Arguments:
        x, op, name, group: as for ``reducescatter_``. ``x`` must be neither read nor changed until ``Handle.wait`` has
            returned.

    Raises:
        TypeError, ValueError: as ``reducescatter_``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("reducescatter_", name, group, operations.reducescatter, x, op, True)


def broadcast(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Any:
    """A new array with the elements that ``x`` has on rank ``root``.

    Arguments:
        x: an array of ``allreduce``'s libraries and dtypes; same shape and dtype on every member. Only the root's
            elements are read.
        root: a rank of the job that is a member of the group; the same on every member.
        name, group: as for ``allreduce``.

    Raises:
        TypeError: ``x`` is no such array; ``name`` or ``group`` is of another type.
        ValueError: ``root`` is no member; ``name`` is not allowed; this rank is no member of ``group``.
        Mismatch: members disagree on the operation, ``root``, shape or dtype, or wait for each other in a circle.
        PeerLost, Timeout, ShoalError: as ``allreduce``.
    """
    return broadcast_async(x, root, name, group).wait()


def broadcast_(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Any:
    """``broadcast`` in place: fills ``x`` on every member but the root, and returns it.

    Arguments:
        x: as for ``allreduce_``.
        root, name, group: as for ``broadcast``.

    Raises:
        TypeError: as ``broadcast``, and if ``x`` cannot be written to, or is an expanded tensor.
        ValueError, Mismatch, PeerLost, Timeout, ShoalError: as ``broadcast``.
    """
    return broadcast_async_(x, root, name, group).wait()


def broadcast_async(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Handle:
    """``broadcast`` that does not wait: returns a Handle at once, whose ``wait`` returns the new array.

    Arguments:
        x, root, name, group: as for ``broadcast``. ``x`` must not be changed until ``Handle.wait`` has returned.

    Raises:
        TypeError, ValueError: as ``broadcast``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("broadcast", name, group, operations.broadcast, x, root, False)


def broadcast_async_(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Handle:
    """``broadcast_`` that does not wait: returns a Handle at once, whose ``wait`` returns ``x``.

    Arguments:
        x, root, name, group: as for ``broadcast_``. ``x`` must be neither read nor changed until ``Handle.wait`` has
            returned.

    Raises:
        TypeError, ValueError: as ``broadcast_``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("broadcast_", name, group, operations.broadcast, x, root, True)


def allgather(x: Any, name: str | None = None, group: Group | None = None) -> Any:
    """The members' arrays one after the other along the first dimension, in the group's order: a new array.

    Arguments:
        x: an array of ``allreduce``'s libraries and dtypes, of shape (n, ...). n may differ between members, the other
            dimensions and the dtype may not.
        name, group: as for ``allreduce``.

    Raises:
        TypeError: ``x`` is no such array; ``name`` or ``group`` is of another type.
        ValueError: ``x`` has no dimension, or rows without elements; ``name`` is not allowed; this rank is no member of
            ``group``.
        Mismatch: members disagree on the operation, the dtype or a dimension other than the first, or wait for each
            other in a circle.
        PeerLost, Timeout, ShoalError: as ``allreduce``.
    """
    return allgather_async(x, name, group).wait()


def allgather_(x: Any, name: str | None = None, group: Group | None = None) -> Any:
    """``allgather`` in place: fills ``x`` and returns it.

    Arguments:
        x: as for ``allreduce_``, of shape (size * n, ...), the same on every member. This member's n rows of it, at its
            place in the group's order, are what it gives; the others are overwritten.
        name, group: as for ``allreduce``.

    Raises:
        TypeError: as ``allgather``, and if ``x`` cannot be written to, or is an expanded tensor.
        ValueError: as ``allgather``, and if the number of rows is no multiple of the group's size.
        Mismatch: as ``allgather``, and if another member has another number of rows.
        PeerLost, Timeout, ShoalError: as ``allreduce``.
    """
    return allgather_async_(x, name, group).wait()


def allgather_async(x: Any, name: str | None = None, group: Group | None = None) -> Handle:
    """``allgather`` that does not wait: returns a Handle at once, whose ``wait`` returns the new array.

    Arguments:
        x, name, group: as for ``allgather``. ``x`` must not be changed until ``Handle.wait`` has returned.

    Raises:
        TypeError, ValueError: as ``allgather``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("allgather", name, group, operations.allgather, x)


def allgather_async_(x: Any, name: str | None = None, group: Group | None = None) -> Handle:
    """``allgather_`` that does not wait: returns a Handle at once, whose ``wait`` returns ``x``.

    Arguments:
        x, name, group: as for ``allgather_``. ``x`` must be neither read nor changed until ``Handle.wait`` has
            returned.

    Raises:
        TypeError, ValueError: as ``allgather_``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("allgather_", name, group, operations.allgather_in_place, x)


def alltoall(x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None) -> Any:
    """The rows that the members have for this one, one member after the other in the group's order: a new array.

    Arguments:
        x: an array of ``allreduce``'s libraries and dtypes, of shape (n, ...). n may differ between members, the other
            dimensions and the dtype may not.
        splits: how many rows each member gets, in the group's order, n in all. None: the same number each.
            ``Handle.splits`` of the asynchronous form tells how many came from each.
        name, group: as for ``allreduce``.

    Raises:
        TypeError: as ``allgather``, and if ``splits`` are no integers.
        ValueError: as ``allgather``, and if ``splits`` are not one number for each member, of n in all, or None where n
            is no multiple of the group's size.
        Mismatch, PeerLost, Timeout, ShoalError: as ``allgather``.
    """
    return alltoall_async(x, splits, name, group).wait()


def alltoall_(x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None) -> Any:
    """``alltoall`` in place: replaces the elements of ``x`` and returns it.

    Arguments:
        x: as for ``allreduce_``, of shape (n, ...), as in ``alltoall``. As many rows must come in as go out.
        splits, name, group: as for ``alltoall``.

    Raises:
        TypeError: as ``alltoall``, and if ``x`` cannot be written to, or is an expanded tensor.
        Mismatch: as ``alltoall``, and if more or fewer than n rows come.
        ValueError, PeerLost, Timeout, ShoalError: as ``alltoall``.
    """
    return alltoall_async_(x, splits, name, group).wait()


def alltoall_async(
    x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None
) -> Handle:
    """``alltoall`` that does not wait: returns a Handle at once, whose ``wait`` returns the new array.

    Arguments:
        x, splits, name, group: as for ``alltoall``. ``x`` must not be changed until ``Handle.wait`` has returned.

    Raises:
        TypeError, ValueError: as ``alltoall``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("alltoall", name, group, operations.alltoall, x, splits, False)


def alltoall_async_(
    x: Any, splits: Sequence[int] | None = None, name: str | None = None, group: Group | None = None
) -> Handle:
    """``alltoall_`` that does not wait: returns a Handle at once, whose ``wait`` returns ``x``.

    Arguments:
        x, splits, name, group: as for ``alltoall_``. ``x`` must be neither read nor changed until ``Handle.wait`` has
            returned.

    Raises:
        TypeError, ValueError: as ``alltoall_``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("alltoall_", name, group, operations.alltoall, x, splits, True)


def barrier(name: str | None = None, group: Group | None = None) -> None:
    """Returns once every member has called it.

    Arguments:
        name, group: as for ``allreduce``.

    Raises:
        TypeError: ``name`` or ``group`` is of another type.
        ValueError: ``name`` is not allowed; this rank is no member of ``group``.
        Mismatch: another member called another operation, or members wait for each other in a circle.
        PeerLost, Timeout, ShoalError: as ``allreduce``.
    """
    barrier_async(name, group).wait()


def barrier_async(name: str | None = None, group: Group | None = None) -> Handle:
    """``barrier`` that does not wait: returns a Handle at once, whose ``wait`` returns None.

    Arguments:
        name, group: as for ``allreduce``.

    Raises:
        TypeError, ValueError: as ``barrier``.
        ShoalError: as ``allreduce_async``. ``Handle.wait`` raises the rest.
    """
    return submit("barrier", name, group, operations.barrier)


def fail(reason: str, name: str | None = None, group: Group | None = None) -> None:
    """Opens an operation as failed on this rank: the other members' calls raise an error that says ``reason``.

    For callers that find out before they submit that they cannot.

    Arguments:
        reason: for a person.
        name, group: as for ``allreduce``.

    Raises:
        TypeError, ValueError: as ``barrier``.
        ShoalError: as ``allreduce_async``.
    """
    chosen = chosen_group(group)
    chosen.session.engine.submit_failed(chosen.number, "" if name is None else _checked_name(name), reason)


def submit(
    operation: str,
    name: str | None,
    group: Group | None,
    plan: Callable[..., Plan],
    *arguments: Any,
    timeout: float | None = None,
    depart: Callable[[], _native.Gate] | None = None,
) -> Handle:
    """Submits what ``plan`` makes of the group and the arguments. If it cannot, the other members hear why.

    Arguments:
        operation: what it is called in messages.
        name, group: as for ``allreduce``.
        plan: called with the group and ``arguments``.
        timeout: in seconds, as the group's, for this operation alone.
        depart: called after ``plan``, where the input is still on its way: gives the gate that opens when it is there.

    Raises:
        TypeError, ValueError: as ``barrier``, and what ``plan`` raises.
        ShoalError: as ``allreduce_async``.
    """
    chosen = world() if group is None else _of_current_job(group)  # as chosen_group, without another call
    session, number = chosen.session, chosen.number
    wire_name = "" if name is None else _checked_name(name)
    try:
        planned = plan(chosen, *arguments)
        gate = None if depart is None else depart()
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
            collective, number, wire_name, op, dtype, shape, splits, root, given, output, limit, gate
        )
    except RuntimeError as error:
        if gate is not None:
            gate.leave()
        raise ShoalError(f"{described(operation, name, session)}: {error}") from error
    traced = 0
    if submitted_ns:
        array = output if given is None else given
        nbytes = 0 if array is None else array.nbytes
        traced = trace.operation_began(native, collective, chosen.identity, name, nbytes, submitted_ns)
    return Handle(native, operation, name, session, planned, traced)


def _allreduce(called: str, x: Any, op: str, name: str | None, group: Group | None, in_place: bool) -> Handle:
    if op == "adasum":
        from shoal.ops import adasum  # which is made of these operations

        return adasum.submit(x, name, group, in_place)
    return submit(called, name, group, operations.allreduce, x, op, in_place)


def chosen_group(group: Group | None) -> Group:
    """``group``, or that of all ranks. Raises TypeError and ShoalError as every operation does."""
    return world() if group is None else _of_current_job(group)


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
