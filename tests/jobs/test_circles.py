"""Ranks that wait for each other in a circle hear of it within seconds, all of them; and nobody hears of what is none."""

import contextlib
import itertools
from collections.abc import Callable

import circle_programs
import circles
import pytest

from shoal.testing import Cluster, run_ranks

# A rank says what it waits for once it has waited for two seconds, and looks every second; then it is asked.
PROMPT = 8.0

# Longer than that, so that what looks like a circle would be taken for one.
LATER = 6.0

# (ranks, nodes, servers): each rank a node, with servers; and one machine, no servers, nodes of several ranks.
SHAPES = [(3, 3, 1), *(pytest.param(*shape, marks=pytest.mark.slow) for shape in ((2, 1, 0), (2, 2, 0), (4, 2, 1)))]


def check(found: list[tuple[str, float]], *words: str) -> None:
    for text, seconds in found:
        assert seconds < PROMPT, found
        assert text.startswith("Mismatch: "), found
        for word in ("wait for each other in a circle", *words):
            assert word in text, f"{word!r} is missing in: {text}"


@pytest.mark.parametrize(("ranks", "nodes", "servers"), SHAPES)
def test_a_step_that_one_rank_leaves_out_is_named_to_all_and_the_job_goes_on(
    ranks: int, nodes: int, servers: int
) -> None:
    found = run_ranks(circles.skipped_batch, ranks, nodes=nodes, servers=servers)
    check(found, "rank 0 ", " waits in allreduce 'gradient3'", "rank 1 ", " barrier 'epoch'")


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_three_ranks_in_a_ring_of_groups(nodes: int) -> None:
    found = run_ranks(circles.ring_of_groups, 3, nodes=nodes)
    check(found, *(f"rank {rank} " for rank in range(3)), " waits in barrier 'mine' of ranks ")


def test_a_step_that_one_rank_leaves_out_in_c10d() -> None:
    check(run_ranks(circles.skipped_in_c10d, 2, nodes=2, servers=1), "rank 0 ", "rank 1 ")


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_batch_that_one_rank_skips_in_the_wrapper(nodes: int) -> None:
    check(run_ranks(circles.skipped_in_the_wrapper, 2, nodes=nodes), "rank 0 ", "rank 1 ", "'epoch'")


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    "program",
    [
        circles.late,
        circles.another_thread_calls,
        circles.a_new_thread_calls,
        circles.a_callback_calls,
        circles.waits_with_a_limit,
        circles.a_thread_of_a_pool_calls,
        circles.a_handler_calls,
        circles.a_thread_that_a_handler_starts_calls,
        circles.an_alarm_that_a_handler_sets_calls,
        circles.tries_with_a_timeout,
        circles.many_callbacks_are_to_come,
    ],
    ids=lambda program: program.__name__,
)
def test_what_somebody_can_still_call_is_waited_for(program: Callable[[float], None], nodes: int) -> None:
    run_ranks(program, 2, LATER, nodes=nodes)


def test_a_thread_that_waits_for_a_message_may_call() -> None:
    assert all(run_ranks(circles.waits_for_a_message, 2))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_callback_of_a_message_that_has_not_come_is_waited_for(nodes: int) -> None:
    run_ranks(circles.a_callback_of_a_message_calls, 3, LATER, nodes=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_random_programs_hear_of_circles_and_of_nothing_else(nodes: int) -> None:
    """500 each, 20 jobs at a time: they wait for most of the time."""
    jobs, each = 20, 25
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(Cluster(circle_programs.RANKS, nodes=nodes)) for _ in range(jobs)]
        first = nodes * 10_000
        running = [
            cluster.start(circle_programs.run_some, first + number * each, first + (number + 1) * each)
            for number, cluster in enumerate(clusters)
        ]
        # seed → what each rank was told
        told: dict[int, list[list[str]]] = {}
        for job in running:
            for rank, found in enumerate(job.results(timeout=600)):
                for seed, errors in found:
                    told.setdefault(seed, [[]] * circle_programs.RANKS)[rank] = errors
    stuck = {seed for seed in range(first, first + jobs * each) if circle_programs.Program(seed).gets_stuck()}
    assert 0.1 * jobs * each < len(stuck) < 0.9 * jobs * each
    assert told.keys() == stuck
    for errors in told.values():
        for error in itertools.chain(*errors):
            assert "wait for each other in a circle" in error or "another rank" in error, error
