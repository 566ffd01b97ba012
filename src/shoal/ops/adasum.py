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

float16, bfloat16 and float32 are combined in float32, float64 in float64; products in float64. Each element of the result
is made by one member, so all have the same bits.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from shoal.errors import Mismatch, ShoalError, Timeout
from shoal.job.groups import Group, world
from shoal.ops import arrays, callbacks, collectives, operations
from shoal.ops.arrays import DTYPE_NAMES, Operand
from shoal.ops.handles import Handle, described
from shoal.ops.operations import Plan

_Values = npt.NDArray[Any]

_FLOATS = ("float16", "bfloat16", "float32", "float64")

# What the steps of calls without a name are called, which come one call after the other.
_UNNAMED = "adasum, without a name"


def submit(x: Any, name: str | None, group: Group | None, in_place: bool) -> "AdasumHandle":
    """As ``collectives.submit`` of an all-reduce.

    Raises ValueError if the number of members is no power of two, TypeError for a dtype that is no floating one.
    """
    operands: list[Operand] = []

    def plan(group: Group) -> Plan:
        operands.append(_checked(x, group, in_place))
        return operations.allreduce(group, _dims(operands[0]), "max", in_place=True)

    # Errors, ranks that disagree and the order of calls are those of an operation of the group. It costs one more.
    opening = collectives.submit("adasum", name, group, plan)
    chosen = world() if group is None else group
    queues, distances = _of(chosen)
    handle = AdasumHandle(described("adasum", name, chosen.session))
    (operand,) = operands
    result = operand if in_place else operand.copy()
    steps = _Steps(handle.what, chosen, distances, _UNNAMED if name is None else name, result, opening)
    queues.begin(steps.label, lambda done: _Run(steps, handle, done).go_on())
    return handle


class AdasumHandle(Handle):
    """A ``Handle`` of several operations, one after the other."""

    __slots__ = ("_callbacks", "_is_over", "_over", "_over_ns", "what")

    def __init__(self, what: str) -> None:
        """``what``: which operation it is, for messages."""
        self.what = what
        self._over = threading.Event()
        self._over_ns = 0
        self._callbacks: list[Callable[[], None]] = []  # guarded by the next
        self._lock = threading.Lock()
        self._array = None
        self._error = None

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        # In turns: nothing goes on when the interpreter ends.
        while not self._over.wait(1 if until is None else max(0.0, min(1, until - time.monotonic()))):
            if until is not None and time.monotonic() >= until:
                raise Timeout(
                    f"{self.what} is not done after {timeout:g} s; it goes on, so wait again or look who is late"
                )
            if callbacks.are_over():
                raise ShoalError(f"{self.what}: the program ends")
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._array

    def call_when_done(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        callbacks.call_soon(callback)

    @property
    def finished_ns(self) -> int:
        return self._over_ns

    @property
    def splits(self) -> tuple[int, ...] | None:
        return None

    def end(self, array: Any, error: Exception | None) -> None:
        """Once."""
        self._array, self._error, self._over_ns = array, error, time.monotonic_ns()
        with self._lock:
            self._over.set()
            waiting = self._callbacks
            self._callbacks = []
        for callback in waiting:
            callbacks.call_soon(callback)

    def _described(self) -> str:
        return self.what


def _checked(x: Any, group: Group, in_place: bool) -> Operand:
    operand = arrays.target(x) if in_place else arrays.source(x)
    if DTYPE_NAMES[operand.dtype] not in _FLOATS:
        raise TypeError(f"adasum is for floating arrays, got {DTYPE_NAMES[operand.dtype]}")
    if group.size & (group.size - 1):
        raise ValueError(f"adasum wants 1, 2, 4, 8 ... members, and {group} has {group.size}: use sum or mean")
    return operand


def _dims(operand: Operand) -> npt.NDArray[np.int64]:
    """The largest of these of all members, both ways, tell whether theirs are the same."""
    sizes = [*operand.shape, operand.dtype]
    return np.array([*sizes, *(-size for size in sizes)], np.int64)


@dataclass(frozen=True)
class _Distance:
    """``pair``: this member and its partner, in their order; ``is_second``: of them. ``block``: all that add up products."""

    pair: Group
    is_second: bool
    block: Group


class _Steps:
    """What one call does, as operations one after the other."""

    def __init__(
        self, what: str, group: Group, distances: list[_Distance], label: str, operand: Operand, opening: Handle
    ) -> None:
        """``what``: which operation it is, for messages. ``group``: in which it was called."""
        self._group = group
        self.what = what
        self.label = label
        self._distances = distances
        self._operand = operand
        self._opening = opening
        self._left: deque[Group] = deque()  # the groups of operations that are still to be called

    def run(self) -> Iterator[Handle]:
        """Each operation, when it is called; goes on when it is done. Then ``result``."""
        yield self._opening
        largest, least = np.split(self._opening.wait(), 2)
        if (largest != -least).any():
            raise Mismatch(
                f"{self.what}: the members have different arrays; this one has "
                f"{DTYPE_NAMES[self._operand.dtype]} {list(self._operand.shape)}"
            )
        values = _widened(self._operand)
        self._left.extend(group for each in self._distances for group in (each.pair, each.block))
        self._left.extend(each.pair for each in reversed(self._distances))
        begin, end = 0, values.size
        cuts: list[tuple[int, int, int]] = []
        for each in self._distances:
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
        for each, (first_begin, middle, second_end) in zip(reversed(self._distances), reversed(cuts), strict=True):
            exchange = self._exchange(each, values[begin:end])
            yield exchange
            other = slice(first_begin, middle) if each.is_second else slice(middle, second_end)
            values[other] = exchange.wait()
            begin, end = first_begin, second_end
        _narrow(values, self._operand)

    def result(self) -> Any:
        return self._operand.finish()

    def fail_the_rest(self, error: Exception) -> Exception:
        """Other members wait for this one in each of them. Returns what to raise."""
        for group in self._left:
            collectives.fail(str(error), self.label, group)
        # Another member may have told of a loss that this one knows of, too.
        losses = (self._group.session.loss_of(rank) for rank in self._group.ranks)
        return next((loss for loss in losses if loss is not None), error)

    def _exchange(self, at: _Distance, sent: _Values) -> Handle:
        self._left.popleft()
        return collectives.alltoall_async(sent, [sent.size, 0] if at.is_second else [0, sent.size], self.label, at.pair)


@dataclass
class _Run:
    """``done``: to be called once it is over."""

    steps: _Steps
    handle: AdasumHandle
    done: Callable[[], None]
    operations: Iterator[Handle] = field(init=False)

    def __post_init__(self) -> None:
        self.operations = self.steps.run()

    def go_on(self) -> None:
        """On whatever thread: until an operation has to be waited for."""
        try:
            for operation in self.operations:
                if not operation.done():
                    operation.call_when_done(self.go_on)
                    return
            self._end(self.steps.result(), None)
        except Exception as error:
            self._end(None, self.steps.fail_the_rest(error))

    def _end(self, array: Any, error: Exception | None) -> None:
        self.handle.end(array, error)
        self.done()


class _Queues:
    """The calls in one group. Of those with one label one is under way at a time, in the order of the calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Callable[[Callable[[], None]], None]]] = {}

    def begin(self, label: str, run: Callable[[Callable[[], None]], None]) -> None:
        """Calls ``run`` in its turn, with what is to be called when it is over."""
        with self._lock:
            waiting = self._waiting.get(label)
            if waiting is not None:
                waiting.append(run)
                return
            self._waiting[label] = deque()
        run(lambda: self._next(label))

    def _next(self, label: str) -> None:
        with self._lock:
            if not self._waiting[label]:
                del self._waiting[label]
                return
            run = self._waiting[label].popleft()
        run(lambda: self._next(label))


# By the group in which they are called.
_known: WeakKeyDictionary[Group, tuple[_Queues, list[_Distance]]] = WeakKeyDictionary()
_lock = threading.Lock()


def _of(group: Group) -> tuple[_Queues, list[_Distance]]:
    with _lock:
        found = _known.get(group)
        if found is None:
            found = _known[group] = _Queues(), _made_partners(group)
        return found


def _made_partners(group: Group) -> list[_Distance]:
    place = group.ranks.index(group.session.rank)
    found = []
    distance = 1
    while distance < group.size:
        pair = sorted((place, place ^ distance))
        first = place // (2 * distance) * 2 * distance
        found.append(
            _Distance(
                Group([group.ranks[each] for each in pair], name=f"adasum pair {distance}", timeout=group.timeout),
                bool(place & distance),
                Group(group.ranks[first : first + 2 * distance], name=f"adasum {distance}", timeout=group.timeout),
            )
        )
        distance *= 2
    return found


def _product(first: _Values, second: _Values) -> float:
    return float(np.einsum("i,i", first, second, dtype=np.float64, casting="safe")) if first.size else 0.0


def _combine(first: _Values, second: _Values, products: _Values, into: _Values) -> None:
    of_first, of_second, of_both = (float(each) for each in products)
    # An array of zeros adds nothing, whatever it is multiplied by.
    by_first = 1 - of_both / (2 * of_first) if of_first else 1.0
    by_second = 1 - of_both / (2 * of_second) if of_second else 1.0
    combined = first * first.dtype.type(by_first)
    combined += second * second.dtype.type(by_second)
    into[...] = combined


def _widened(operand: Operand) -> _Values:
    """A copy of its elements to reckon with."""
    elements, dtype = operand.elements, DTYPE_NAMES[operand.dtype]
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.astype(np.float64 if dtype == "float64" else np.float32)


def _narrow(values: _Values, operand: Operand) -> None:
    """The elements' place has these values, rounded to nearest."""
    if DTYPE_NAMES[operand.dtype] != "bfloat16":
        with np.errstate(over="ignore"):
            operand.elements[...] = values
        return
    bits = values.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    operand.elements[...] = np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
