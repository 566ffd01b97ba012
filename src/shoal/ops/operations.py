"""What each collective hands to the native core, and how its result becomes an array again.

A plan is made from this rank's arguments alone; whatever is wrong with them is a TypeError or ValueError here. What ranks
must agree on is compared by the protocol, not here.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shoal import _native
from shoal.errors import Mismatch
from shoal.job.groups import Group
from shoal.ops import arrays
from shoal.ops.arrays import BOOL, DTYPE_NAMES, Operand

# The numbers of docs/protocol/format.md, Numbers.
ALL_REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, ALL_TO_ALL, BARRIER = 1, 2, 3, 4, 5, 6
OPERATORS = {"sum": 1, "mean": 2, "min": 3, "max": 4, "product": 5}


# Takes the bytes that came from all members, one after the other in the group's order, and how many came from each.
# Raises ShoalError for what it has no use for.
Take = Callable[[memoryview, list[int]], None]


class Plan(NamedTuple):
    """One submission.

    ``finish``: makes of the operation, once it has ended well, what its caller gets. ``root``: an index into the group.
    ``splits``: bytes. ``row_bytes``: of what comes in as many rows as members send, 0 where that is known before.
    """

    finish: Callable[[_native.Handle], Any]
    collective: int
    op: int = 0
    dtype: int = 0
    shape: tuple[int, ...] = ()
    input: _native.Array | None = None
    output: _native.Array | None = None
    root: int = 0
    splits: tuple[int, ...] = ()
    row_bytes: int = 0

    def then(self, finish: Callable[[], None]) -> "Plan":
        """This, and after what it does with the result ``finish``."""

        def both(handle: _native.Handle) -> Any:
            array = self.finish(handle)
            finish()
            return array

        return self._replace(finish=both)


def barrier(_: Group) -> Plan:
    return Plan(lambda _: None, BARRIER)


def allreduce(_: Group, x: Any, op: str, in_place: bool) -> Plan:
    given = arrays.target(x) if in_place else arrays.source(x)
    result = given if in_place else given.empty(given.shape)
    # By their order, which is faster: this is what training calls most.
    return Plan(
        result.finished,
        ALL_REDUCE,
        _operator(op, given.dtype),
        given.dtype,
        given.shape,
        given.native,
        result.native,
    )


def allreduce_into(_: Group, x: Any, output: Any, op: str) -> Plan:
    """``x`` and ``output``: of the same dtype and shape; they may be the same array."""
    result = arrays.target(output)
    given = result if x is output else arrays.source(x)
    if result.dtype != given.dtype or result.shape != given.shape:
        raise ValueError(
            f"the output has {DTYPE_NAMES[result.dtype]} {list(result.shape)}, but the input {DTYPE_NAMES[given.dtype]} "
            f"{list(given.shape)}"
        )
    return Plan(
        result.finished,
        ALL_REDUCE,
        _operator(op, given.dtype),
        given.dtype,
        given.shape,
        given.native,
        result.native,
    )


def broadcast(group: Group, x: Any, root: int, in_place: bool) -> Plan:
    if root not in group.ranks:
        raise ValueError(f"root {root} is not a member of {group}; root is a rank of the job")
    index = group.ranks.index(root)
    given = arrays.target(x) if in_place else arrays.source(x)
    result = given if in_place else given.copy() if index == group.rank else given.empty(given.shape)
    return Plan(
        result.finished,
        BROADCAST,
        dtype=given.dtype,
        shape=given.shape,
        root=index,
        input=result.native if index == group.rank else None,
        output=result.native,
    )


def reducescatter(group: Group, x: Any, op: str, in_place: bool) -> Plan:
    given = arrays.target(x) if in_place else arrays.source(x)
    rows = _rows(given)
    begin, end = chunk(rows, group.size, _index(group))
    if in_place:
        output = given.part(begin * given.row_bytes, end * given.row_bytes)
    else:
        result = given.empty((end - begin, *given.shape[1:]))
        output = result.native
    return Plan(
        (lambda _: given.rows(begin, end)) if in_place else result.finished,
        REDUCE_SCATTER,
        op=_operator(op, given.dtype),
        dtype=given.dtype,
        shape=given.shape,
        input=given.native,
        output=output,
    )


def reducescatter_into(group: Group, x: Any, output: Any, op: str) -> Plan:
    """``x`` and ``output``: of one dimension; this member's elements of the result go into ``output``."""
    given, result = arrays.source(x), arrays.target(output)
    begin, end = chunk(_rows(given), group.size, _index(group))
    if result.dtype != given.dtype or result.shape != (end - begin,):
        raise ValueError(
            f"the output has {DTYPE_NAMES[result.dtype]} {list(result.shape)}, but this member's part of the input is "
            f"{DTYPE_NAMES[given.dtype]} [{end - begin}]"
        )
    return Plan(
        result.finished,
        REDUCE_SCATTER,
        op=_operator(op, given.dtype),
        dtype=given.dtype,
        shape=given.shape,
        input=given.native,
        output=result.native,
    )


def allgather(_: Group, x: Any) -> Plan:
    given = arrays.source(x)
    _rows(given)
    row_bytes = _row_bytes(given)

    def finish(handle: _native.Handle) -> Any:
        rows = sum(handle.blocks()) // row_bytes
        return given.adopt(handle.output(), (rows, *given.shape[1:]))

    return Plan(finish, ALL_GATHER, dtype=given.dtype, shape=given.shape, input=given.native)


def allgather_by_blocks(_: Group, x: Any, take: Take) -> Plan:
    """Hands the members' elements to ``take``."""
    given = arrays.source(x)
    return Plan(
        lambda handle: _taken(handle, take),
        ALL_GATHER,
        dtype=given.dtype,
        shape=given.shape,
        input=given.native,
    )


def allgather_into(group: Group, x: Any, output: Any) -> Plan:
    """``x`` and ``output``: of one dimension; all members have as many elements, and ``output`` has place for all of them."""
    given, result = arrays.source(x), arrays.target(output)
    if result.dtype != given.dtype or _rows(result) != group.size * _rows(given):
        raise ValueError(
            f"the output has {DTYPE_NAMES[result.dtype]} {list(result.shape)}, but there are {group.size} inputs of "
            f"{DTYPE_NAMES[given.dtype]} {list(given.shape)}"
        )
    expected = [_rows(given) * given.itemsize] * group.size
    return Plan(
        lambda handle: _filled(group, handle, result, expected),
        ALL_GATHER,
        dtype=given.dtype,
        shape=given.shape,
        input=given.native,
        output=result.native,
    )


def allgather_in_place(group: Group, x: Any) -> Plan:
    given = arrays.target(x)
    rows, row_bytes = _rows(given), _row_bytes(given)
    if rows % group.size:
        raise ValueError(f"the first dimension, {rows}, must be a multiple of the group's {group.size} members")
    given.keep_place()
    share = rows // group.size * row_bytes
    own = _index(group) * share

    def finish(handle: _native.Handle) -> Any:
        _check_blocks(group, handle.blocks(), [share] * group.size, row_bytes)
        given.read(handle.output())
        return given.finish()

    return Plan(
        finish,
        ALL_GATHER,
        dtype=given.dtype,
        shape=(rows // group.size, *given.shape[1:]),
        input=given.part(own, own + share),
    )


def alltoall(group: Group, x: Any, splits: Sequence[int] | None, in_place: bool) -> Plan:
    given = arrays.target(x) if in_place else arrays.source(x)
    if in_place:
        given.keep_place()
    rows, row_bytes = _rows(given), _row_bytes(given)
    counts = _equal_splits(rows, group) if splits is None else _checked_splits(splits, rows, group)

    def finish(handle: _native.Handle) -> Any:
        received = [block // row_bytes for block in handle.blocks()]
        if not in_place:
            return given.adopt(handle.output(), (sum(received), *given.shape[1:]))
        if sum(received) != rows:
            raise Mismatch(
                f"the members {list(group.ranks)} sent {received} rows, {sum(received)} in all, but the array that "
                f"they should replace has {rows}: use alltoall, which returns a new array"
            )
        given.read(handle.output())
        return given.finish()

    return Plan(
        finish,
        ALL_TO_ALL,
        dtype=given.dtype,
        shape=given.shape,
        input=given.native,
        splits=tuple(count * row_bytes for count in counts),
        row_bytes=row_bytes,
    )


def alltoall_by_blocks(group: Group, x: Any, splits: Sequence[int], take: Take) -> Plan:
    """``x``: of one dimension. Hands what the members have for this one to ``take``."""
    given = arrays.source(x)
    counts = _checked_splits(splits, _rows(given), group)
    return Plan(
        lambda handle: _taken(handle, take),
        ALL_TO_ALL,
        dtype=given.dtype,
        shape=given.shape,
        splits=tuple(count * given.itemsize for count in counts),
        input=given.native,
    )


def alltoall_into(group: Group, x: Any, splits: Sequence[int], output: Any, expected: Sequence[int]) -> Plan:
    """``x`` and ``output``: of one dimension. ``expected``: how many elements come from each member."""
    given, result = arrays.source(x), arrays.target(output)
    counts, places = _checked_splits(splits, _rows(given), group), _checked_splits(expected, _rows(result), group)
    if result.dtype != given.dtype:
        raise ValueError(f"the output has {DTYPE_NAMES[result.dtype]}, but the input {DTYPE_NAMES[given.dtype]}")
    return Plan(
        lambda handle: _filled(group, handle, result, [place * given.itemsize for place in places]),
        ALL_TO_ALL,
        dtype=given.dtype,
        shape=given.shape,
        splits=tuple(count * given.itemsize for count in counts),
        input=given.native,
        output=result.native,
    )


def chunk(rows: int, members: int, index: int) -> tuple[int, int]:
    """The rows [begin, end) that member ``index`` gets: the first ``rows % members`` members have one more."""
    each, more = divmod(rows, members)
    begin = index * each + min(index, more)
    return begin, begin + each + (1 if index < more else 0)


def _taken(handle: _native.Handle, take: Take) -> None:
    take(handle.output(), handle.blocks())


def _filled(group: Group, handle: _native.Handle, result: Operand, expected: list[int]) -> Any:
    """``result``, into which the core has put what came, if it was as much from each as was expected."""
    if handle.blocks() != expected:
        raise Mismatch(
            f"the members {list(group.ranks)} sent {handle.blocks()} bytes, one number for each, but the array to be filled "
            f"expects {expected}"
        )
    return result.finish()


def _operator(op: str, dtype: int) -> int:
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be one of {', '.join(OPERATORS)}, got {op!r}")
    if op in ("sum", "mean") and dtype == BOOL:
        raise TypeError(f"bool has no {op}: use op='max' for any, op='min' for all, or convert to an integer")
    return OPERATORS[op]


def _index(group: Group) -> int:
    index = group.rank
    if index is None:
        raise ValueError(f"rank {group.session.rank} is not a member of {group}")
    return index


def _rows(given: Operand) -> int:
    if not given.shape:
        raise ValueError("the array needs at least one dimension, which is cut into rows: pass x.reshape(1)")
    return given.shape[0]


def _row_bytes(given: Operand) -> int:
    if not given.row_bytes:
        raise ValueError(f"shape {given.shape} has rows without elements, which cannot be told apart")
    return given.row_bytes


def _equal_splits(rows: int, group: Group) -> list[int]:
    if rows % group.size:
        raise ValueError(
            f"the first dimension, {rows}, is not a multiple of the group's {group.size} members: say splits="
        )
    return [rows // group.size] * group.size


def _checked_splits(splits: Sequence[int], rows: int, group: Group) -> list[int]:
    counts = [operator.index(count) for count in splits]
    if len(counts) != group.size or min(counts) < 0 or sum(counts) != rows:
        raise ValueError(
            f"splits must be {group.size} numbers of rows, one for each member, that add up to the first dimension, "
            f"{rows}; got {counts}"
        )
    return counts


def _check_blocks(group: Group, blocks: list[int], expected: list[int], row_bytes: int) -> None:
    if blocks != expected:
        raise Mismatch(
            f"the members {list(group.ranks)} sent {[block // row_bytes for block in blocks]} rows, but the array to be "
            f"filled has room for {expected[0] // row_bytes} from each: use allgather, which returns a new array"
        )
