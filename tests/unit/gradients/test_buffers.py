"""Which buffers are complete: once, when the last of their gradients is ready that is to come."""

import random
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from shoal.gradients.buffers import BufferProgress
from shoal.gradients.layout import ALIGNMENT, Item, lay_out

# Gradient 0 lies in the first buffer, 1 in both, 2 in the second, 3 has no elements.
CONTENTS, TOUCHED = [(0, 1), (1, 2)], [(0,), (0, 1), (1,), ()]


def test_a_buffer_is_complete_with_its_last_gradient() -> None:
    progress = BufferProgress(CONTENTS, TOUCHED, frozenset())
    assert [list(progress.ready(gradient)) for gradient in (1, 3, 0, 2)] == [[], [], [0], [1]]


def test_one_gradient_may_complete_several() -> None:
    progress = BufferProgress(CONTENTS, TOUCHED, frozenset())
    assert [list(progress.ready(gradient)) for gradient in (0, 2, 1)] == [[], [], [0, 1]]


def test_what_is_ready_again_changes_nothing() -> None:
    progress = BufferProgress(CONTENTS, TOUCHED, frozenset())
    assert [list(progress.ready(gradient)) for gradient in (0, 0, 1, 1, 0)] == [[], [], [0], [], []]
    assert progress.is_ready(0)
    assert not progress.is_ready(2)


def test_frozen_gradients_do_not_come() -> None:
    progress = BufferProgress(CONTENTS, TOUCHED, frozenset({1, 2}))
    assert progress.filled == [0]
    assert list(progress.ready(0)) == [0]


def test_a_gradient_is_sent_with_the_first_of_its_buffers() -> None:
    progress = BufferProgress(CONTENTS, TOUCHED, frozenset())
    progress.submitted(0)
    assert [progress.is_sent(gradient) for gradient in range(4)] == [True, True, False, False]


@given(
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=30),
    buffer_bytes=st.integers(1, 10 * ALIGNMENT),
    frozen=st.sets(st.integers(0, 29)),
    seed=st.integers(0, 2**32),
)
def test_in_any_order_each_buffer_is_complete_once_and_not_before(
    sizes: list[int], buffer_bytes: int, frozen: set[int], seed: int
) -> None:
    layout = lay_out([Item(str(index), size, 4) for index, size in enumerate(sizes)], buffer_bytes)
    progress = BufferProgress(layout.needed, layout.touched, frozen)
    come = [index for index in range(len(sizes)) if index not in frozen]
    random.Random(seed).shuffle(come)
    seen: set[int] = set()
    complete: list[int] = []
    for gradient in come:
        seen.add(gradient)
        for buffer in progress.ready(gradient):
            assert seen.issuperset(set(layout.needed[buffer]) - frozen)
            complete.append(buffer)
    assert sorted(complete) == progress.filled
    assert set(chain.from_iterable(layout.touched[gradient] for gradient in come)) == set(complete)
