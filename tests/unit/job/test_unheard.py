"""Failures of operations whose callers went on: heard of once, by whoever comes first."""

from collections.abc import Iterator

import pytest

from shoal.errors import PeerLost, ShoalError
from shoal.job import unheard


class Operation:
    """``failure``: what it ends with, as soon as somebody looks."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def await_end(self) -> Exception | None:
        # On another thread, the callback of the operation may have been before.
        unheard.ended(self, self.failure)
        return self.failure


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    unheard.wait_for_all()
    unheard.take_first()


def test_a_failure_is_raised_once() -> None:
    operation = Operation(PeerLost("rank 3 is lost", 3, "there"))
    unheard.expect(operation)
    unheard.raise_first()
    unheard.ended(operation, operation.failure)
    with pytest.raises(PeerLost, match=r"rank 3 is lost .*go on from a checkpoint") as raised:
        unheard.raise_first()
    assert (raised.value.rank, raised.value.host) == (3, "there")
    unheard.raise_first()


def test_what_went_well_and_what_nobody_expects_is_forgotten() -> None:
    well, other = Operation(), Operation(ShoalError("not expected"))
    unheard.expect(well)
    unheard.ended(well, None)
    unheard.ended(other, other.failure)
    assert unheard.take_first() is None


def test_waiting_for_all_loses_nothing() -> None:
    unheard.expect(Operation(ShoalError("late")))
    unheard.wait_for_all()
    failure = unheard.take_first()
    assert failure is not None
    assert "late" in str(failure)


@pytest.mark.parametrize("first", ["heard", "ended"])
def test_what_somebody_has_waited_for_is_not_told_again(first: str) -> None:
    operation = Operation(ShoalError("known"))
    unheard.expect(operation)
    if first == "heard":
        unheard.heard(operation)
        unheard.ended(operation, operation.failure)
    else:
        unheard.ended(operation, operation.failure)
        unheard.heard(operation)
    unheard.wait_for_all()
    assert unheard.take_first() is None


def test_the_first_of_several_counts() -> None:
    unheard.note(ShoalError("first"))
    unheard.note(ShoalError("second"))
    with pytest.raises(ShoalError, match="first"):
        unheard.raise_first()
    unheard.raise_first()
