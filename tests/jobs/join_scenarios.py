"""What the ranks of test_join.py do: programs whose ranks have different numbers of batches, and join when they have no more."""

import contextlib
import os
import time
import unittest.mock
from typing import Any

import numpy as np
import numpy.typing as npt

import shoal
from shoal.ops import joining

# Elements: what lives at one server, and what is cut into shards and segments.
SMALL, LARGE = 5, 300_000


def batch(rank: int, step: int, elements: int = SMALL) -> npt.NDArray[np.float32]:
    return np.full(elements, (rank + 1) * (step + 1), np.float32)


def sum_of_those_with(steps: list[int], step: int) -> int:
    """Of ``batch`` of the ranks that have so many steps."""
    return sum((rank + 1) * (step + 1) for rank, count in enumerate(steps) if count > step)


def train(steps: list[int], group: shoal.Group | None = None) -> int:
    """Each rank makes its number of steps, all ways of all-reduce, then joins: who joined last."""
    rank, size = shoal.rank(), shoal.size()
    for step in range(steps[rank]):
        right = sum_of_those_with(steps, step)
        mean = shoal.allreduce(batch(rank, step), name="loss", group=group)
        np.testing.assert_allclose(mean, right / size, rtol=1e-6)
        np.testing.assert_array_equal(shoal.allreduce(batch(rank, step), op="sum", group=group), right)
        large = batch(rank, step, LARGE)
        handles = [
            shoal.allreduce_async_(large[at : at + LARGE // 3], op="sum", name=f"gradient {at}", group=group)
            for at in range(0, LARGE, LARGE // 3)
        ]
        for handle in handles:
            handle.wait()
        np.testing.assert_array_equal(large, right)
        least = shoal.allreduce(batch(rank, step).astype(np.int16) + 1, op="min", name="least", group=group)
        assert least.tolist() == [0 if min(steps) <= step else step + 2] * SMALL
    return shoal.join(group)


def uneven_batches() -> list[int]:
    """Twice, the other way round, with everything as ever between and after: who joined last each time."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    steps = [2 * rank for rank in range(size)]
    last = []
    for counts in (steps, steps[::-1], [1] * size):
        last.append(train(counts))
        assert shoal.allreduce(np.ones(2), op="sum").tolist() == [size] * 2
        assert shoal.allgather(np.array([rank]), name="after").tolist() == list(range(size))
        shoal.barrier()
    shoal.shutdown()
    return last


def calls_just_before_the_join() -> int:
    """Asynchronous ones that nobody waits for before, under names that the ranks do not all have."""
    shoal.init()
    rank = shoal.rank()
    handles = {
        f"{rank} {elements} {turn}": shoal.allreduce_async(np.full(elements, rank + 1.0), op="sum", name=f"of {rank}")
        for elements in (SMALL, LARGE)
        for turn in range(rank + 1)
    }
    unnamed = [shoal.allreduce_async(np.ones(3), op="sum") for _ in range(3 * rank)]
    last = shoal.join()
    for handle in handles.values():
        assert handle.done()
        assert set(handle.wait().tolist()) == {rank + 1.0}
    for number, handle in enumerate(unnamed):
        assert handle.wait().tolist() == [float(sum(3 * other > number for other in range(shoal.size())))] * 3
    assert shoal.join() == shoal.size() - 1  # nobody has called anything since
    shoal.shutdown()
    return last


def other_operations() -> list[str]:
    """What the ranks hear that call something else while rank 0 has joined."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    said = []
    if rank > 0:
        rows = np.ones(2 * size)
        for operation in (
            lambda: shoal.allgather(rows, name="all"),
            lambda: shoal.broadcast(rows, root=1, name="one"),
            lambda: shoal.reducescatter(rows, name="parts"),
            lambda: shoal.alltoall(rows),
        ):
            began = time.monotonic()
            try:
                operation()
            except shoal.ShoalError as error:
                said.append(str(error))
            assert time.monotonic() - began < 20
        shoal.barrier()
        assert shoal.allreduce(np.ones(1), op="sum").tolist() == [size - 1]
    shoal.join()
    assert shoal.allgather(np.array([rank]), name="all").tolist() == list(range(size))
    shoal.shutdown()
    return said


def one_fails_while_another_has_joined(culprit: int) -> str:
    """What a rank hears of an operation that has failed on one rank, and that rank 0, which has joined, calls too."""
    shoal.init()
    rank = shoal.rank()
    said = ""
    if rank == culprit:
        with contextlib.suppress(TypeError):
            shoal.allreduce(np.array(["no number"]), name="x")
    elif rank > 0:
        time.sleep(0.5)
        try:
            shoal.allreduce(np.ones(3), name="x")
        except shoal.ShoalError as error:
            said = str(error)
    shoal.join()
    assert shoal.allreduce(np.ones(3), op="sum", name="y").tolist() == [shoal.size()] * 3
    shoal.shutdown()
    return said


class Interrupted:
    """A handle whose first wait is interrupted, as by Ctrl-C."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._is_new = True

    def done(self) -> bool:
        return not self._is_new and self._handle.done()

    def wait(self, timeout: float | None = None) -> Any:
        if self._is_new:
            self._is_new = False
            raise KeyboardInterrupt
        return self._handle.wait(timeout)


def one_is_interrupted(name: str) -> list[int]:
    """Rank 0, when it waits for the operation with this name of its join. It joins again."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    if rank == 0:
        submit = joining._submit
        with unittest.mock.patch.object(
            joining,
            "_submit",
            lambda group, plan, called: (Interrupted if called == name else lambda it: it)(submit(group, plan, called)),
        ):
            try:
                shoal.join()
                raise AssertionError("nothing has interrupted it")
            except KeyboardInterrupt:
                time.sleep(0.5)
    for step in range(3 if rank > 0 else 0):
        np.testing.assert_array_equal(
            shoal.allreduce(batch(rank, step), op="sum", name="x"),
            sum((other + 1) * (step + 1) for other in range(1, size)),
        )
    last = [shoal.join()]
    # Whoever goes on first has nobody's zeros.
    assert shoal.allreduce(np.ones(2), op="sum", name="x").tolist() == [size] * 2
    last.append(train(list(range(size))))
    shoal.shutdown()
    return last


def adasum_beside_one_that_has_joined() -> str:
    shoal.init()
    said = ""
    if shoal.rank() == 1:
        try:
            shoal.allreduce(np.ones(3), op="adasum")
        except shoal.ShoalError as error:
            said = str(error)
    shoal.join()
    assert shoal.allreduce(np.ones(3), op="adasum").tolist() == [1.0] * 3
    shoal.shutdown()
    return said


def groups_of_some() -> list[int]:
    """Ranks 2 and 0 join in a group of theirs while all ranks go on together; and in one of one rank."""
    shoal.init()
    rank = shoal.rank()
    pair, alone = shoal.Group([2, 0]), shoal.Group([rank])
    last = [shoal.join(alone)]
    if rank == 0:
        last.append(shoal.join(pair))
    if rank == 2:
        for _ in range(3):
            assert shoal.allreduce(np.ones(4), op="sum", group=pair).tolist() == [1.0] * 4
        last.append(shoal.join(pair))
    assert shoal.allreduce(np.ones(4), op="sum").tolist() == [shoal.size()] * 4
    shoal.shutdown()
    return last


def one_dies() -> str:
    shoal.init()
    if shoal.rank() == 1:
        shoal.allreduce(np.ones(3), name="x")
        os._exit(3)
    try:
        shoal.join()
    except shoal.PeerLost as error:
        return str(error)
    return "nothing"


def one_never_joins() -> str:
    shoal.init()
    rank = shoal.rank()
    if rank == 1:
        # It goes on for longer than the timeout, and so long nobody loses patience.
        for _ in range(10):
            shoal.allreduce(np.ones(3), name="x")
            time.sleep(0.5)
        time.sleep(8)
    try:
        shoal.join()
    except shoal.ShoalError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def steps_until_a_server_is_gone(steps: int) -> list[int]:
    """Rank 0 has joined all the time; the others say where they are."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    for step in range(steps if rank > 0 else 0):
        print("working" if step == 3 else step, flush=True)
        large = batch(rank, step, LARGE)
        handle = shoal.allreduce_async_(large, op="sum", name="gradient")
        loss = shoal.allreduce(batch(rank, step), op="sum")
        right = sum((other + 1) * (step + 1) for other in range(1, size))
        np.testing.assert_array_equal(loss, right)
        np.testing.assert_array_equal(handle.wait(), right)
        time.sleep(0.02)
    last = shoal.join()
    assert shoal.allreduce(np.ones(2), op="sum").tolist() == [size] * 2
    shoal.shutdown()
    return [last]
