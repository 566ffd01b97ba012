"""Adasum: a sum that does not grow where the members' arrays point the same way.

Two arrays a, b become

    (1 - a·b / (2 a·a)) a + (1 - a·b / (2 b·b)) b

their sum where they are orthogonal, their mean where they are parallel. More than two are taken in pairs, neighbours
first, then pairs of neighbours, and so on; so there are 2, 4, 8 ... members (Maleki et al., "Scaling Distributed Training
with Adaptive Summation", MLSys 2021, sections 3 and 4).

It is done by vector halving and distance doubling, after the same paper. At distance d a member and the one d places
away exchange halves of what they have; each combines its half, with the three products, which the 2 d members of both
sides add up. At the end each has 1 / n of the result, and the exchanges are done backwards. A member sends (n - 1) / n
of the array twice, and receives as much, straight from member to member where it is large, and three numbers at each
distance.

float16, bfloat16 and float32 are combined, and travel on the way there, in float32, float64 in float64; products are summed
in float64. Each element of the result is made by one member, so all have the same bits.

The caller's array is read when the operation is called, and written when it is done.
"""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from shoal.assembly.terms import rank_name
from shoal.errors import Mismatch, ShoalError, Timeout
from shoal.job import process_exit, runtime
from shoal.job.groups import Group, world
from shoal.job.per_job import PerJob
from shoal.ops import arrays, callbacks, collectives, operations
from shoal.ops.arrays import DTYPE_NAMES, Operand
from shoal.ops.handles import Handle, described
from shoal.ops.operations import Plan

_Values = npt.NDArray[Any]

_FLOATS = ("float16", "bfloat16", "float32", "float64")

# What the steps of calls without a name are called, which come one call after the other.
_UNNAMED = "adasum, without a name"

# Larger factors have no room in float32, or leave none for what they are multiplied by.
_LARGEST_FACTOR = 1e6

# How often those who wait look whether the interpreter ends, in seconds.
_TURN = 1.0


def submit(x: Any, name: str | None, group: Group | None, in_place: bool) -> "AdasumHandle":
    """As ``collectives.submit`` of an all-reduce.

    Raises ValueError if the number of members is no power of two, TypeError for a dtype that is no floating one.
    """
    given: list[_Arrays] = []

    def plan(group: Group) -> Plan:
        operand = _checked(x, group, in_place)
        if in_place:
            operand.keep_place()
        given.append(_Arrays(operand, _widened(operand), operand if in_place else operand.empty(operand.shape)))
        return operations.allreduce(group, _told(operand, group), "max", in_place=True)

    # Errors, ranks that disagree and the order of calls are those of an operation of the group. It costs one more.
    opening = collectives.submit("adasum", name, group, plan)
    inside = _insides.inside(world() if group is None else group)
    run = _Run(inside, name, opening, given[0])
    inside.queue.begin(run)
    return run.handle


class AdasumHandle(Handle):
    """A ``Handle`` of several operations, one after the other."""

    __slots__ = ("_callbacks", "_changed", "_is_over", "_over_ns", "_step", "what")

    def __init__(self, what: str, first: Handle) -> None:
        """``what``: which operation it is, for messages. ``first``: the first of its operations."""
        self.what = what
        self._changed = threading.Condition()
        # The next are guarded by it.
        self._step = first
        self._is_over = False
        self._over_ns = 0
        self._callbacks: list[Callable[[], None]] = []
        self._array = None
        self._error = None

    def done(self) -> bool:
        return self._is_over

    def wait(self, timeout: float | None = None) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._is_over:
            left = _TURN if until is None else min(_TURN, until - time.monotonic())
            if left <= 0:
                raise Timeout(
                    f"{self.what} is not done after {timeout:g} s; it goes on, so wait again or look who is late"
                )
            if callbacks.are_over():
                raise ShoalError(f"{self.what}: the program ends")
            self._wait_for_step(left)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._array

    def _wait_for_step(self, seconds: float) -> None:
        """The core has to see for what this thread waits: it looks for ranks that wait for each other."""
        step = self._step
        try:
            step.wait(seconds)
        except Timeout:
            if not step.done():
                return
        except Exception:  # the step's own, which ends this one too; or this is a forked child
            if not step.done():
                raise
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._step is not step, seconds)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        with self._changed:
            if not self._is_over:
                self._callbacks.append(callback)
                return
        callbacks.call_soon(callback)

    @property
    def finished_ns(self) -> int:
        return self._over_ns

    @property
    def splits(self) -> tuple[int, ...] | None:
        return None

    def goes_on(self, step: Handle) -> None:
        """With this operation."""
        with self._changed:
            self._step = step
            self._changed.notify_all()

    def end(self, array: Any, error: Exception | None) -> None:
        """Once."""
        with self._changed:
            self._array, self._error, self._over_ns = array, error, time.monotonic_ns()
            self._is_over = True
            self._changed.notify_all()
            waiting, self._callbacks = self._callbacks, []
        for callback in waiting:
            callbacks.call_soon(callback)

    def _described(self) -> str:
        return self.what


class _Arrays(NamedTuple):
    """``given``: the caller's. ``values``: its elements, to reckon with. ``result``: where the result goes."""

    given: Operand
    values: _Values
    result: Operand


def _checked(x: Any, group: Group, in_place: bool) -> Operand:
    operand = arrays.target(x) if in_place else arrays.source(x)
    if DTYPE_NAMES[operand.dtype] not in _FLOATS:
        raise TypeError(f"adasum is for floating arrays, got {DTYPE_NAMES[operand.dtype]}")
    if group.size & (group.size - 1):
        raise ValueError(f"adasum wants 1, 2, 4, 8 ... members, and {group} has {group.size}: use sum or mean")
    return operand


def _told(operand: Operand, group: Group) -> npt.NDArray[np.int64]:
    """The largest of these of all members tell whether their arrays are the same, both ways, and who has given none."""
    sizes = [*operand.shape, operand.dtype]
    is_here = [rank == group.session.rank for rank in group.ranks]
    return np.array([*sizes, *(-size for size in sizes), *is_here], np.int64)


@dataclass(frozen=True)
class _Distance:
    """``pair``: this member and its partner, in their order; ``is_second``: of them. ``block``: all that add up products."""

    pair: Group
    is_second: bool
    block: Group


class _Run:
    """One call: operations one after the other, on threads for callbacks."""

    def __init__(self, inside: "_Inside", name: str | None, opening: Handle, its: _Arrays) -> None:
        self.label = _UNNAMED if name is None else name
        """What its operations are called."""
        self.handle = AdasumHandle(described("adasum", name, inside.session), opening)
        self._inside = inside
        self._opening = opening
        self._arrays = its
        # The groups of operations that are still to be called. Nobody calls any if the opening fails.
        self._left: deque[Group] = deque()
        self._operations = self._run()

    def begin(self) -> None:
        """In its turn. The caller's thread does nothing of it."""
        self._opening.call_when_done(self._go_on)

    def _go_on(self) -> None:
        """Until an operation has to be waited for."""
        array, error = None, None
        try:
            for operation in self._operations:
                self.handle.goes_on(operation)
                if not operation.done():
                    operation.call_when_done(self._go_on)
                    return
            array = self._arrays.result.finish()
        except Exception as failure:
            error = self._fail_the_rest(failure)
        self.handle.end(array, error)
        self._inside.queue.goes_on(self)

    def _run(self) -> Iterator[Handle]:
        """Each operation, when it has been called; to be asked for the next when it is done."""
        yield self._opening
        given, values, _ = self._arrays
        told = self._opening.wait()
        many = len(given.shape) + 1
        largest, least, is_here = told[:many], told[many : 2 * many], told[2 * many :]
        if not is_here.all():
            joined = self._inside.ranks[int(is_here.argmin())]
            raise ShoalError(
                f"{self.handle.what}: {rank_name(joined, self._inside.session.hosts)} has joined (shoal.join), and has "
                "nothing for adasum; until all have joined, call only other all-reduces and barriers in this group"
            )
        if (largest != -least).any():
            raise Mismatch(
                f"{self.handle.what}: the members have different arrays; this one has "
                f"{DTYPE_NAMES[given.dtype]} {list(given.shape)}"
            )
        distances = self._inside.distances
        self._left.extend(group for each in distances for group in (each.pair, each.block))
        self._left.extend(each.pair for each in reversed(distances))
        begin, end = 0, values.size
        cuts: list[tuple[int, int, int]] = []
        for each in distances:
            middle = (begin + end + 1) // 2
            cuts.append((begin, middle, end))
            halves = values[begin:middle], values[middle:end]
            own, sent = reversed(halves) if each.is_second else halves
            exchange = self._exchange(each, sent)
            yield exchange
            received = exchange.wait()
            first, second = (received, own) if each.is_second else (own, received)
            products = np.array([_product(first, first), _product(second, second), _product(first, second)])
            self._left.popleft()
            added = collectives.allreduce_async_(products, "sum", self.label, each.block)
            yield added
            _combine(first, second, added.wait(), own)
            begin, end = (middle, end) if each.is_second else (begin, middle)
        narrow = np.empty(values.size, given.elements.dtype)
        narrow[begin:end] = _narrowed(values[begin:end], given)
        for each, (first_begin, middle, second_end) in zip(reversed(distances), reversed(cuts), strict=True):
            exchange = self._exchange(each, narrow[begin:end])
            yield exchange
            narrow[slice(first_begin, middle) if each.is_second else slice(middle, second_end)] = exchange.wait()
            begin, end = first_begin, second_end
        self._write(narrow)

    def _exchange(self, at: _Distance, sent: _Values) -> Handle:
        self._left.popleft()
        return collectives.alltoall_async(sent, [sent.size, 0] if at.is_second else [0, sent.size], self.label, at.pair)

    def _write(self, narrow: _Values) -> None:
        given, _, result = self._arrays
        if result is given:
            given.read(narrow.data)  # which looks whether the caller's array is still there
        else:
            result.elements[...] = narrow

    def _fail_the_rest(self, error: Exception) -> Exception:
        """Other members wait for this one in each of them. Returns what to raise."""
        for group in self._left:
            with suppress(RuntimeError):  # the job has ended, for them too
                collectives.fail(str(error), self.label, group)
        # Another member may have told of a loss that this one knows of, too.
        with suppress(RuntimeError):
            losses = (self._inside.session.loss_of(rank) for rank in self._inside.ranks)
            return next((loss for loss in losses if loss is not None), error)
        return error


class _Queue:
    """The calls in one group. Of those with one label one is under way at a time, in the order of the calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By label; the first of each is under way.
        self._runs: dict[str, deque[_Run]] = {}

    def begin(self, run: _Run) -> None:
        """In its turn."""
        with self._lock:
            runs = self._runs.setdefault(run.label, deque())
            runs.append(run)
            is_first = len(runs) == 1
        if is_first:
            run.begin()

    def goes_on(self, ended: _Run) -> None:
        with self._lock:
            runs = self._runs[ended.label]
            runs.popleft()
            following = runs[0] if runs else None
            if following is None:
                del self._runs[ended.label]
        if following is not None:
            following.begin()

    def open(self) -> list[AdasumHandle]:
        with self._lock:
            return [run.handle for runs in self._runs.values() for run in runs]


class _Inside:
    """What a group's calls need: their queue, and groups for their steps."""

    def __init__(self, group: Group) -> None:
        self.queue = _Queue()
        self.session = group.session
        self.ranks = group.ranks
        self.distances: list[_Distance] = []
        place = group.ranks.index(group.session.rank)
        # On all members they are of this group, whatever other groups of these ranks have been used in what order.
        own = hashlib.blake2b(group.identity.encode(), digest_size=8).hexdigest()
        distance = 1
        while distance < group.size:
            first = place // (2 * distance) * 2 * distance
            pair = [group.ranks[each] for each in sorted((place, place ^ distance))]
            block = group.ranks[first : first + 2 * distance]
            self.distances.append(
                _Distance(
                    Group(pair, name=f"adasum pair {distance} {own}", timeout=group.timeout),
                    bool(place & distance),
                    Group(block, name=f"adasum {distance} {own}", timeout=group.timeout),
                )
            )
            distance *= 2


class _Insides:
    """Of the groups of all jobs of this process."""

    def __init__(self) -> None:
        self._of_job: PerJob[WeakKeyDictionary[Group, _Inside]] = PerJob(lambda _: WeakKeyDictionary())
        self._lock = threading.Lock()
        self._queues: WeakSet[_Queue] = WeakSet()

    def inside(self, group: Group) -> _Inside:
        known = self._of_job.of(group.session)
        with self._lock:
            found = known.get(group)
            if found is None:
                found = known[group] = _Inside(group)
                self._queues.add(found.queue)
            return found

    def finish(self) -> None:
        """Waits until all calls are over. What they raise is for whoever waits for them."""
        with self._lock:
            queues = list(self._queues)
        for handle in [handle for queue in queues for handle in queue.open()]:
            with suppress(Exception):
                handle.wait()


_insides = _Insides()
runtime.call_around(lambda _: None, _insides.finish, lambda _: None)
process_exit.call_before_leaving(_insides.finish)


def _product(first: _Values, second: _Values) -> float:
    return float(np.einsum("i,i", first, second, dtype=np.float64, casting="safe")) if first.size else 0.0


def _combine(first: _Values, second: _Values, products: _Values, into: _Values) -> None:
    of_first, of_second, of_both = (float(each) for each in products)
    # An array of zeros adds nothing, whatever it is multiplied by.
    by_first = 1 - of_both / (2 * of_first) if of_first else 1.0
    by_second = 1 - of_both / (2 * of_second) if of_second else 1.0
    exact = first.dtype if max(abs(by_first), abs(by_second)) < _LARGEST_FACTOR else np.dtype(np.float64)
    combined = first * exact.type(by_first)
    combined += second * exact.type(by_second)
    with np.errstate(over="ignore"):
        into[...] = combined


def _widened(operand: Operand) -> _Values:
    """A copy of its elements to reckon with."""
    elements, dtype = operand.elements, DTYPE_NAMES[operand.dtype]
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.astype(np.float64 if dtype == "float64" else np.float32)


def _narrowed(values: _Values, operand: Operand) -> _Values:
    """Rounded to nearest, as the operand has its elements."""
    if DTYPE_NAMES[operand.dtype] != "bfloat16":
        with np.errstate(over="ignore"):
            return values.astype(operand.elements.dtype)
    bits = values.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
