"""Joining: a rank that has no more data gives zeros to what the others of a group still call, until none of them has any.

The core hears what others call, and calls it (docs/protocol/lifecycle.md, "Joined ranks"). Here is what a rank waits for:
its own calls, then the others, then the last calls that it makes for them.
"""

from contextlib import suppress
from typing import Any

import numpy as np

from shoal import _native
from shoal.errors import ShoalError, Timeout
from shoal.job.groups import Group
from shoal.ops import operations
from shoal.ops.collectives import chosen_group
from shoal.ops.handles import Handle, described
from shoal.ops.operations import Plan

# Of the operation in which ranks that have joined wait for each other (native/protocol/keys.h). Programs have no such names.
_NAME = "#join"

# How long a thread waits at a time, in seconds. Without an end it would count as one that can call nothing before
# (docs/decisions/circles.md), but the core calls something whenever it is told to.
_TURN = 3600.0


def join(group: Group | None = None) -> int:
    """For a rank that has no more data: gives zeros to all-reduces that others still call. Returns when all have joined.

    Until all ranks of the group have called it, each all-reduce of the group goes on as if this rank called it with zeros:
    the divisor of a mean stays the number of all ranks, and a minimum, maximum or product has the zeros in it. Barriers go
    on, too. Any other operation of the group that is called meanwhile fails on all ranks that call it, with an error that
    names a rank that has joined. Operations of this rank may still be open; they go on. Until it returns, this rank calls
    nothing in the group, on any thread. Other groups are as before.

    Returns the last rank that joined, the same on all ranks and in every run: the one that had called the most operations in
    the group since it joined last, and of several the highest.

    Arguments:
        group: the ranks that wait for each other, of which this is one. None: all ranks of the job.

    Raises:
        TypeError: ``group`` is no group.
        ValueError: this rank is no member of ``group``.
        PeerLost: a rank or server that is needed is gone, or has left.
        Timeout: for so many seconds as the group's ``timeout`` says nobody has called anything in the group, and somebody has
            not joined.
        ShoalError: this process is in no job; ``group`` is of an earlier one; another thread of this rank has joined there.
    """
    chosen = chosen_group(group)
    session, number = chosen.session, chosen.number
    try:
        calls, still_open = session.engine.join(number, chosen.timeout)
    except RuntimeError as error:
        raise ShoalError(f"{described('join', None, session)}: {error}") from error
    try:
        for own in still_open:
            _await(own)
        last = _wait_for_all(chosen, calls)
    finally:
        with suppress(RuntimeError):  # closed at this moment
            session.engine.end_join(number)
    # What is called from now on, no rank is to call for another.
    _submit(chosen, operations.barrier(chosen)).wait()
    return last


def _wait_for_all(group: Group, calls: int) -> int:
    """``calls``: of this rank's program since the last join. The last rank that joined."""
    session, number = group.session, group.number
    made = calls + session.engine.calls_for_others(number)
    handle = _submit(group, operations.allgather(group, np.array([[calls, made]], np.int64)))
    while not handle.done():
        with suppress(Timeout):
            handle.wait(_TURN)
    of_all: Any = handle.wait()
    most = int(of_all[:, 1].max())
    if not session.engine.await_calls_for_others(number, most - calls, group.timeout):
        raise Timeout(
            f"{described('join', None, session)}: all ranks have joined, but for {group.timeout:g} s this one was not told "
            "of all that they had called: an operation had failed, and the server that knew of it was lost; leave the job "
            "(shoal.shutdown) and join it again"
        )
    return max(zip(of_all[:, 0].tolist(), group.ranks, strict=True))[1]


def _submit(group: Group, plan: Plan) -> Handle:
    session = group.session
    try:
        native = session.engine.submit(
            plan.collective, group.number, _NAME, 0, plan.dtype, plan.shape, (), 0, plan.input, None, group.timeout
        )
    except RuntimeError as error:
        raise ShoalError(f"{described('join', None, session)}: {error}") from error
    return Handle(native, "join", None, session, plan, 0)


def _await(native: _native.Handle) -> None:
    while native.wait(_TURN) is None:
        pass
