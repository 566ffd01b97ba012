"""Joining: a rank that has no more data gives zeros to what the others of a group still call, until none of them has any.

The core hears what others call, and calls it (docs/protocol/lifecycle.md, "Joined ranks"). Here is what a rank waits for:
its own calls, then the others, then the last calls that it makes for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal import _native
from shoal.errors import ShoalError, Timeout
from shoal.job import trace
from shoal.job.groups import Group
from shoal.job.per_job import PerJob
from shoal.ops import operations
from shoal.ops.collectives import chosen_group
from shoal.ops.handles import Handle, described
from shoal.ops.operations import Plan

# Of the operations in which ranks that have joined wait for each other, and then until none is joined any more
# (native/protocol/keys.h). Programs have no such names.
_JOIN, _JOINED = "#join", "#joined"

# How long a thread waits at a time, in seconds. Without an end it would count as one that can call nothing before
# (docs/decisions/circles.md), but the core calls something whenever it is told to.
_TURN = 3600.0


@dataclass
class _Join:
    """A join of this rank's, as far as it has come. Who is interrupted in it calls ``join`` again, which goes on there: the
    others have its operations already.

    ``before``: how many calls for others had ended when it began. ``calls``: of the program since the last join.
    """

    before: int
    calls: int = 0
    gathering: Handle | None = None
    last: int = -1
    barrier: Handle | None = None


# By group. Touched by the thread that joins there.
_begun: PerJob[dict[int, _Join]] = PerJob(lambda _: {})


def join(group: Group | None = None) -> int:
    """For a rank that has no more data: gives zeros to all-reduces that others still call. Returns when all have joined.

    Until all ranks of the group have called it, each all-reduce of the group goes on as if this rank called it with zeros:
    the divisor of a mean stays the number of all ranks, and a minimum, maximum or product has the zeros in it. Barriers go
    on, too. Any other operation of the group that is called meanwhile, adasum among them, fails on all ranks that call it,
    with an error that names a rank that has joined. Operations of this rank may still be open; they go on. Until it returns, this rank calls
    nothing in the group, on any thread. Other groups are as before. Who is interrupted in it (KeyboardInterrupt) gives no more
    zeros until it calls ``join`` again, which goes on where it was.

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
    begun = _begun.of(chosen.session)
    interrupted = begun.get(chosen.number)
    with trace.span("join"):
        if interrupted is None or interrupted.barrier is None:
            _wait_for_all(chosen, begun)
        joined = begun[chosen.number]
        assert joined.barrier is not None, "all have joined"
        with _forgetting(chosen, begun):
            # What is called from now on, no rank is to call for another.
            joined.barrier.wait()
    begun.pop(chosen.number, None)
    return joined.last


def _wait_for_all(group: Group, begun: dict[int, _Join]) -> None:
    session, number = group.session, group.number
    engine = session.engine
    joined = begun.get(number) or _Join(engine.calls_for_others(number))
    try:
        calls, still_open = engine.join(number, group.timeout)
    except RuntimeError as error:
        raise ShoalError(f"{described('join', None, session)}: {error}") from error
    begun[number] = joined
    with _forgetting(group, begun):
        try:
            if joined.gathering is None:
                joined.calls += calls
                for own in still_open:
                    _await(own)
                made = joined.calls + engine.calls_for_others(number) - joined.before
                counts = np.array([[joined.calls, made]], np.int64)
                joined.gathering = _submit(group, operations.allgather(group, counts), _JOIN)
            joined.last = _last(group, joined, joined.gathering)
        finally:
            with suppress(RuntimeError):  # closed at this moment
                engine.end_join(number)
        joined.barrier = _submit(group, operations.barrier(group), _JOINED)


@contextmanager
def _forgetting(group: Group, begun: dict[int, _Join]) -> Iterator[None]:
    """A join that fails is over. One that is interrupted is not."""
    try:
        yield
    except ShoalError:
        begun.pop(group.number, None)
        raise


def _last(group: Group, joined: _Join, gathering: Handle) -> int:
    """When all have joined, and this rank has made all of their calls: the last that joined."""
    session, number = group.session, group.number
    while not gathering.done():
        with suppress(Timeout):
            gathering.wait(_TURN)
    of_all: Any = gathering.wait()
    most = int(of_all[:, 1].max())
    if not session.engine.await_calls_for_others(number, joined.before + most - joined.calls, group.timeout):
        raise Timeout(
            f"{described('join', None, session)}: all ranks have joined, but for {group.timeout:g} s this one was not told "
            "of all that they had called: an operation had failed, and the server that knew of it was lost; leave the job "
            "(shoal.shutdown) and join it again"
        )
    return max(zip(of_all[:, 0].tolist(), group.ranks, strict=True))[1]


def _submit(group: Group, plan: Plan, name: str) -> Handle:
    session = group.session
    try:
        native = session.engine.submit(
            plan.collective, group.number, name, 0, plan.dtype, plan.shape, (), 0, plan.input, None, group.timeout
        )
    except RuntimeError as error:
        raise ShoalError(f"{described('join', None, session)}: {error}") from error
    return Handle(native, "join", None, session, plan, 0)


def _await(native: _native.Handle) -> None:
    while native.wait(_TURN) is None:
        pass
