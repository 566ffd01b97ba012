"""The operations of a pass: every rank opens the same ones, each once, whatever happens to it."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from in_memory_ranks import Ranks

from shoal.gradients.agreement import Statement
from shoal.gradients.averaging import Averaging

TOUCHED = [(0,), (0, 1), (2,)]


class Window(NamedTuple):
    label: str
    memory: npt.NDArray[np.float32]
    gradients: tuple[int, ...]


def windows(value: float) -> list[Window]:
    return [
        Window(f"buffer{number}", np.full(4, value, np.float32), gradients)
        for number, gradients in enumerate([(0, 1), (1,), (2,)])
    ]


def begun(
    ranks: Ranks, expected: list[list[int]] | None = None, frozen: frozenset[int] = frozenset()
) -> list[Averaging[Window]]:
    """On each of two ranks, whose buffers hold its rank. ``expected``: by rank, where unused gradients are looked
    for.
    """
    return [
        Averaging(
            ranks[rank],
            windows(float(rank)),
            TOUCHED,
            frozen,
            Statement(["the same"]),
            None if expected is None else expected[rank],
        )
        for rank in range(ranks.size)
    ]


def test_buffers_are_averaged_as_they_become_complete_in_whatever_order() -> None:
    ranks = Ranks(2)
    passes = begun(ranks)
    for averaging, order in zip(passes, ((0, 1, 2), (2, 1, 0)), strict=True):
        for gradient in order:
            averaging.ready(gradient)
    assert ranks.opened[0] == ["layout", "buffer0", "buffer1", "buffer2"]
    assert ranks.opened[1] == ["layout", "buffer2", "buffer1", "buffer0"]
    for averaging in passes:
        averaging.finish(None)
        averaging.scale(2.0)
        assert [buffer.memory.tolist() for buffer, _ in averaging.sent] == [[1.0] * 4] * 3
        assert averaging.operation_count == 4


def test_a_buffer_of_frozen_gradients_is_not_sent() -> None:
    ranks = Ranks(2)
    passes = begun(ranks, frozen=frozenset({2}))
    for averaging in passes:
        averaging.ready(0)
        averaging.ready(1)
    for averaging in passes:
        averaging.finish(None)
    assert ranks.opened[0] == ["layout", "buffer0", "buffer1"]


def test_what_no_rank_has_is_not_sent_and_what_one_has_is_sent_by_all() -> None:
    ranks = Ranks(2)
    first, second = begun(ranks, expected=[[0, 1], []])
    for averaging in (first, second):
        for gradient in range(3):
            averaging.ready(gradient)
    assert first.will_be_sent(1)
    assert not first.will_be_sent(2)
    used = [np.zeros(3, np.uint8) for _ in range(2)]
    for averaging, mine in zip((first, second), used, strict=True):
        averaging.exchange_used(mine)
    for averaging in (first, second):
        averaging.finish(None)
    for rank in range(2):
        assert sorted(ranks.opened[rank]) == ["buffer0", "buffer1", "layout", "needed", "used"]


def test_a_rank_that_cannot_go_on_opens_the_rest_as_failed() -> None:
    ranks = Ranks(2)
    first, second = begun(ranks)
    first.ready(0)
    first.ready(1)
    first.abandon("its pass has ended with an error")
    assert ranks.failed[0] == ["buffer2"]
    for gradient in range(3):
        second.ready(gradient)
    with pytest.raises(RuntimeError, match="its pass has ended with an error"):
        second.finish(None)
    assert first.wait() is None, "what it had submitted is averaged"


def test_an_error_of_this_rank_is_raised_here_and_heard_there() -> None:
    ranks = Ranks(2)
    first, second = begun(ranks)
    for gradient in range(3):
        second.ready(gradient)
    with pytest.raises(ValueError, match="mine"):
        first.finish(ValueError("mine"))
    assert ranks.failed[0] == ["buffer0", "buffer1", "buffer2"]
    with pytest.raises(RuntimeError, match="mine"):
        second.finish(None)
