"""What a program does with an array while an operation writes to it: the memory stays, and the result lands in it.

Each case goes wrong, or has nothing to show, without that: memory that nobody else holds is unmapped by then, and a write to
it would end the process.
"""

import gc
import mmap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import shoal
from shoal.testing import run_ranks

ELEMENTS = 300_000
PLACES = [{"nodes": 1}, {"nodes": 2}]

# Given a tensor and returning what can be waited for.
Start = Callable[[torch.Tensor], Any]


def array_api(tensor: torch.Tensor) -> Any:
    return shoal.allreduce_async_(tensor, op="sum")


def c10d(tensor: torch.Tensor) -> Any:
    return dist.all_reduce(tensor, async_op=True)


def c10d_coalesced(tensor: torch.Tensor) -> Any:
    half = tensor.numel() // 2
    return dist.all_reduce_coalesced([tensor[:half], tensor[half:]], async_op=True)


def strided(tensor: torch.Tensor) -> Any:
    """Through a temporary, of which the result is copied to its place in the end."""
    return shoal.allreduce_async_(tensor.view(2, -1).t(), op="sum")


STARTS: list[Start] = [array_api, c10d, c10d_coalesced, strided]


def let_go_by_data(tensor: torch.Tensor) -> None:
    tensor.data = torch.zeros(3)


def let_go_by_set(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.set_(torch.zeros(3))


LET_GO: list[Callable[[torch.Tensor], None]] = [let_go_by_data, let_go_by_set]


class Turns:
    """Rank 1 begins when rank 0 has done what it wants while its operation is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def turn(self) -> None:
        self._number += 1
        done = self._folder / str(self._number)
        if shoal.rank() == 0:
            done.touch()
        while not done.exists():
            time.sleep(0.001)


def all_cases(folder: Path) -> dict[str, Any]:
    """What came of each case, on this rank."""
    dist.init_process_group("shoal")
    turns = Turns(folder)
    said: dict[str, Any] = {}
    for start in STARTS:
        for let_go in (None, *LET_GO):
            name = let_go.__name__ if let_go else "del"
            said[f"{start.__name__} {name}"] = give_away(start, let_go, turns)
    for start in (array_api, c10d):
        said[f"resize {start.__name__}"] = resize(start, turns)
    said["in parts"] = in_parts(turns)
    for name in ("all_gather", "strided"):
        said[f"copied back {name}"] = copied_back(name, turns)
    for operation in (shoal.allgather_async_, shoal.alltoall_async_):
        for let_go in (*LET_GO, None):
            name = let_go.__name__ if let_go else "resized"
            said[f"{operation.__name__} {name}"] = exchanged(operation, let_go, turns)
    said["numpy"] = numpy_resize(turns)
    dist.destroy_process_group()
    return said


@pytest.fixture(scope="module", params=PLACES, ids=str)
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank."""
    results: list[dict[str, Any]] = run_ranks(
        all_cases, 2, tmp_path_factory.mktemp("turns"), timeout=120, **request.param
    )
    return results


def give_away(start: Start, let_go: Callable[[torch.Tensor], None] | None, turns: Turns) -> tuple[bool, bool, bool]:
    """Of memory that a tensor had when it was given to an operation and has no longer, or that has no tensor any more: whether
    it is held meanwhile, whether it has the result then, and whether it is held no longer."""
    if shoal.rank() == 1:
        turns.turn()
        start(torch.full((ELEMENTS,), 2.0)).wait()
        return True, True, True
    memory = mmap.mmap(-1, 4 * ELEMENTS)
    # NumPy's array keeps the memory from being closed, and torch's storage NumPy's array.
    tensor = torch.from_numpy(np.frombuffer(memory, np.float32))
    tensor.fill_(1.0)
    work = start(tensor)
    if let_go is None:
        del tensor
    else:
        let_go(tensor)
    gc.collect()
    held = not _can_be_closed(memory)
    turns.turn()
    work.wait()
    right = memory[:] == np.full(ELEMENTS, 3.0, "f4").tobytes()
    del work
    # What is waited for may be a future, and the thread that has set that needs a moment more.
    deadline = time.monotonic() + 10.0
    while not (let_go_of := _can_be_closed(memory)) and time.monotonic() < deadline:
        gc.collect()
    return held, right, let_go_of


def _can_be_closed(memory: mmap.mmap) -> bool:
    try:
        memory.close()
    except BufferError:
        return False
    return True


@pytest.mark.parametrize("let_go", ["del", "let_go_by_data", "let_go_by_set"])
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_memory_that_a_tensor_is_given_away_from_stays_until_the_result_is_in_it(
    said: list[dict[str, Any]], start: Start, let_go: str
) -> None:
    assert [of_rank[f"{start.__name__} {let_go}"] for of_rank in said] == [(True, True, True)] * 2


def refused(way: Callable[[], Any]) -> str:
    """What PyTorch, or NumPy, says to it."""
    try:
        way()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing"


def resize(start: Start, turns: Turns) -> list[str]:
    """What PyTorch says to each way to give a storage other memory, while an operation uses it; then all are possible."""
    if shoal.rank() == 1:
        turns.turn()
        start(torch.full((ELEMENTS,), 2.0)).wait()
        return []
    tensor = torch.full((ELEMENTS,), 1.0)
    storage = tensor.untyped_storage()
    work = start(tensor)
    said = [
        refused(lambda: storage.resize_(0)),
        # These on views of their own: PyTorch gives a tensor its new sizes before it refuses, as it does where the memory is
        # NumPy's, and whoever uses such a tensor nevertheless reaches beyond its memory.
        refused(lambda: tensor[:].resize_(2 * ELEMENTS)),
        refused(lambda: tensor[:1000].resize_(2 * ELEMENTS)),
        refused(lambda: torch.cat([torch.ones(ELEMENTS), torch.ones(ELEMENTS)], out=tensor[:])),
        # And on the tensor itself, whose operation has the sizes that it had.
        refused(lambda: tensor.resize_(2 * ELEMENTS)),
    ]
    turns.turn()
    work.wait()
    assert tensor.untyped_storage().nbytes() == 4 * ELEMENTS
    assert (tensor[:ELEMENTS] == 3.0).all()
    assert storage.resizable()
    storage.resize_(0)
    assert storage.nbytes() == 0
    return said


@pytest.mark.parametrize("start", [array_api, c10d], ids=lambda start: start.__name__)
def test_a_storage_cannot_be_resized_while_an_operation_uses_it_and_can_then(
    said: list[dict[str, Any]], start: Start
) -> None:
    texts = said[0][f"resize {start.__name__}"]
    assert len(texts) == 5
    assert all("not resizable" in text for text in texts), texts


def in_parts(turns: Turns) -> list[bool]:
    """Whether a storage may be resized: with one of two operations on it done, and with both, as ``done()`` finds."""
    if shoal.rank() == 1:
        shoal.allreduce(np.ones(10, "f4"), op="sum", name="first")
        turns.turn()
        shoal.allreduce(np.ones(10, "f4"), op="sum", name="second")
        return []
    tensor = torch.ones(20)
    storage = tensor.untyped_storage()
    first = shoal.allreduce_async_(tensor[:10], op="sum", name="first")
    second = shoal.allreduce_async_(tensor[10:], op="sum", name="second")
    first.wait()
    may = [storage.resizable()]
    turns.turn()
    while not second.done():
        time.sleep(0.001)
    return [*may, storage.resizable()]


def test_a_storage_is_free_when_the_last_operation_on_it_is_done(said: list[dict[str, Any]]) -> None:
    assert [of_rank["in parts"] for of_rank in said] == [[False, True], []]


def copied_back(start: str, turns: Turns) -> str:
    """What is said where the result cannot be copied to its place any more."""
    parts = [torch.empty(ELEMENTS) for _ in range(2)]
    tensor = torch.ones(ELEMENTS)

    def begin() -> Any:
        return dist.all_gather(parts, tensor, async_op=True) if start == "all_gather" else strided(tensor)

    if shoal.rank() == 0:
        work = begin()
        (parts[1] if start == "all_gather" else tensor).untyped_storage().resize_(0)
        turns.turn()
    else:
        turns.turn()
        work = begin()
    try:
        work.wait()
    except shoal.ShoalError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("start", ["all_gather", "strided"])
def test_a_result_that_has_no_place_any_more_is_an_error(said: list[dict[str, Any]], start: str) -> None:
    texts = [of_rank[f"copied back {start}"] for of_rank in said]
    assert "resized while the operation was running" in texts[0]
    assert texts[1] == ""


def exchanged(
    operation: Callable[[torch.Tensor], shoal.Handle], let_go: Callable[[torch.Tensor], None] | None, turns: Turns
) -> list[Any]:
    """Of an operation whose result is put into the array by ``wait``: what is in its memory when the tensor has been given other
    memory before. With nothing to let go: what is said of resizing it while the operation runs, and of the result when it was resized
    between the operation's end and ``wait``."""
    tensor = torch.full((ELEMENTS,), float(shoal.rank()))
    was = tensor.detach()
    if shoal.rank() == 1:
        turns.turn()
        operation(tensor).wait()
        return [tensor[0].item(), tensor[-1].item()]
    handle = operation(tensor)
    if let_go is not None:
        let_go(tensor)
        turns.turn()
        handle.wait()
        return [was[0].item(), was[-1].item()]
    while_running = refused(lambda: tensor.untyped_storage().resize_(0))
    turns.turn()
    while not handle.done():
        time.sleep(0.001)
    tensor.untyped_storage().resize_(0)
    return [while_running, refused(handle.wait)]


@pytest.mark.parametrize("operation", ["allgather_async_", "alltoall_async_"])
def test_what_wait_puts_into_an_array_goes_to_the_memory_that_it_had_or_is_an_error(
    said: list[dict[str, Any]], operation: str
) -> None:
    for let_go in ("let_go_by_data", "let_go_by_set"):
        assert [of_rank[f"{operation} {let_go}"] for of_rank in said] == [[0.0, 1.0]] * 2
    (while_running, then), other = (of_rank[f"{operation} resized"] for of_rank in said)
    assert "not resizable" in while_running
    assert "resized while the operation was running" in then
    assert other == [0.0, 1.0]


def numpy_resize(turns: Turns) -> list[str]:
    if shoal.rank() == 1:
        turns.turn()
        for size in (ELEMENTS, 10, 20):
            (shoal.allgather_ if size == 20 else shoal.allreduce_)(np.full(size, 2.0, "f4"))
        return []
    array, base, gathered = (np.full(size, 1.0, "f4") for size in (ELEMENTS, 20, 20))
    handles = [shoal.allreduce_async_(array), shoal.allreduce_async_(base[:10]), shoal.allgather_async_(gathered)]
    arrays = (array, base, gathered)
    said = [refused(lambda one=one: one.resize(2 * one.size, refcheck=False)) for one in arrays]  # type: ignore[misc]
    turns.turn()
    for handle in handles:
        handle.wait()
    assert (array == 1.5).all()
    assert (base[:10] == 1.5).all()
    assert gathered.tolist() == [1.0] * 10 + [2.0] * 10
    del handles, handle
    for one in arrays:
        one.resize(2 * one.size, refcheck=False)
    return said


def test_an_array_of_numpy_cannot_be_resized_while_an_operation_uses_it_and_can_then(
    said: list[dict[str, Any]],
) -> None:
    texts = said[0]["numpy"]
    assert len(texts) == 3
    assert all("cannot resize an array" in text for text in texts), texts
