"""A Work that Python lets go of without having waited is kept for who holds it in C++, but not what its tensors take."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import shoal
from shoal.torch import versions
from shoal.torch.c10d import work as works
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.c10d.work import OperationWork

pytestmark = pytest.mark.skipif(
    not versions.has("works are held"), reason="this PyTorch holds half of every Work, which asks for any result later"
)

PROGRAM = CallSite("group")


class Operation:
    """What a Work asks of a ``Handle``."""

    def __init__(self, tensor: torch.Tensor, is_done: bool = False) -> None:
        self._tensor = tensor  # as an operation that may have to be put into its place
        self.is_done = is_done
        self.callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        return self.is_done

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        assert self.is_done, "it would never end"
        return self._tensor

    def call_when_done(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_kept", "_in_flight"):
        monkeypatch.setattr(works, name, deque[OperationWork]())


def work_of(operation: Operation) -> OperationWork:
    handles: Any = [operation]
    return OperationWork(handles, [operation._tensor], PROGRAM.operation())


def start_another() -> None:
    work_of(Operation(torch.zeros(1), is_done=True)).wait()


def let_go(elements: int, is_done: bool) -> tuple[Operation, "weakref.ref[torch.Tensor]"]:
    """An operation whose Work Python has let go of, and its tensor."""
    operation = Operation(torch.zeros(elements), is_done)
    work_of(operation)
    return operation, weakref.ref(operation._tensor)


def test_an_operation_that_nobody_waits_for_keeps_its_tensors_until_it_is_done() -> None:
    operation, tensor = let_go(100_000, is_done=False)
    start_another()
    assert len(works._in_flight) == 1
    operation.is_done = True
    del operation
    assert tensor() is not None, "nobody has looked yet"
    start_another()
    assert tensor() is None


def test_one_that_is_done_when_it_is_let_go_of_keeps_nothing() -> None:
    operation, tensor = let_go(100_000, is_done=True)
    del operation
    assert tensor() is None


def test_those_behind_one_that_is_not_done_wait_for_it() -> None:
    first, _ = let_go(100_000, is_done=False)
    second, tensor = let_go(100_000, is_done=True)
    del second
    start_another()
    assert tensor() is not None
    first.is_done = True
    start_another()
    assert tensor() is None
    assert not works._in_flight


def test_many_that_nobody_waits_for_are_not_all_kept() -> None:
    for _ in range(3):
        for is_done in (False, True):
            for _ in range(works._KEPT):
                let_go(2000, is_done)
                let_go(1, is_done)
    assert len(works._in_flight) <= works._KEPT
    assert len(works._kept) == works._KEPT


def test_a_number_stays_since_it_may_be_asked_for_in_c() -> None:
    operation, _ = let_go(1, is_done=True)
    start_another()
    (kept,) = works._kept
    assert kept.result() == [operation._tensor]
    assert kept.get_future().wait() == [operation._tensor]


def test_who_asks_too_late_hears_why_there_is_no_result() -> None:
    let_go(100_000, is_done=True)
    (kept,) = works._kept
    assert kept.is_completed()
    for ask in (kept.wait, kept.result, kept.get_future().wait):
        with pytest.raises(shoal.ShoalError, match=r"operation group\.\d+ are gone.*keep the Work"):
            ask()


def test_who_has_the_future_gets_the_results() -> None:
    operation, _ = let_go(100_000, is_done=False)
    future = works._in_flight[0].get_future()
    operation.is_done = True
    start_another()
    (callback,) = operation.callbacks
    callback()
    assert future.wait() == [operation._tensor]


def test_parts_are_not_kept_beside_the_whole() -> None:
    parts = [work_of(Operation(torch.zeros(2000))) for _ in range(2)]
    whole = OperationWork.of_all(parts)
    del parts
    assert not works._in_flight
    del whole
    assert len(works._in_flight) == 1
