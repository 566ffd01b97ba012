"""Ranks that disagree are told, all of them, within a second, who sent what; the job goes on with the next operation."""

import time
from collections.abc import Callable

import numpy as np
import pytest

import shoal
from shoal.testing import run_ranks

PROMPT = 1.0


def check_told(call: Callable[[], object], *words: str) -> None:
    """The call raises Mismatch within a second, and the message has every word."""
    begin = time.monotonic()
    with pytest.raises(shoal.Mismatch) as caught:
        call()
    assert time.monotonic() - begin < PROMPT
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is missing in: {message}"


def check_goes_on() -> None:
    assert shoal.allreduce(1.0, op="sum") == shoal.size()
    assert shoal.allreduce(np.ones(50_000, np.float32), op="sum", name="next").sum() == 50_000 * shoal.size()


def disagreements(elements: int) -> None:
    shoal.init()
    odd = shoal.rank() == 1
    shoal.barrier()
    x = np.zeros((elements, 2), np.float32)
    here = f"rank {shoal.rank()}"
    longer = np.zeros((elements + 1, 2), np.float32)
    check_told(lambda: shoal.allreduce(longer if odd else x, name="weight"), "allreduce", "weight", here, "rank 1")
    check_goes_on()
    check_told(lambda: shoal.allreduce(x.T if odd else x, name="turned"), "turned", here)
    check_goes_on()
    other = x.astype(np.int32) if odd else x
    check_told(lambda: shoal.allreduce(other, op="sum", name="bias"), "bias", "int32", "float32")
    check_goes_on()
    op = "max" if odd else "sum"
    check_told(lambda: shoal.allreduce_(x, op=op, name="loss"), "loss", "max", "sum")
    check_goes_on()
    check_told(lambda: shoal.broadcast(x, root=1 if odd else 0, name="model"), "model", "root")
    check_goes_on()
    collective = shoal.reducescatter if odd else shoal.allreduce
    check_told(lambda: collective(x, name="shared"), "shared")
    check_goes_on()
    wide = np.zeros((elements, 3), np.float32)
    check_told(lambda: shoal.allgather(wide if odd else x, name="gathered"), "gathered")
    check_goes_on()
    check_told(lambda: shoal.allreduce(longer if odd else x), "allreduce", here)
    check_goes_on()
    shoal.shutdown()


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (4, 2)])
@pytest.mark.parametrize("elements", [5, 50_000], ids=["small", "large"])
def test_every_rank_hears_of_a_disagreement_and_the_job_goes_on(ranks: int, servers: int, elements: int) -> None:
    run_ranks(disagreements, ranks, elements, servers=servers)


def failures_before_submission() -> None:
    shoal.init()
    odd = shoal.rank() == 1
    wrong = np.zeros(3, np.complex64)
    for name in ("spectrum", None):
        shoal.barrier()
        begin = time.monotonic()
        if odd:
            with pytest.raises(TypeError, match="complex64") as local:
                shoal.allreduce(wrong, name=name)
            assert "rank 1" in str(local.value)
        else:
            with pytest.raises(shoal.ShoalError, match="complex64") as heard:
                shoal.allreduce(np.zeros(3), name=name)
            assert "rank 1" in str(heard.value)
            assert (name or "allreduce") in str(heard.value)
        assert time.monotonic() - begin < PROMPT
        check_goes_on()
    shoal.shutdown()


def test_what_fails_on_one_rank_before_it_is_sent_is_heard_by_the_others() -> None:
    run_ranks(failures_before_submission, 3, servers=1)


def sizes_that_do_not_fit() -> None:
    shoal.init()
    rank = shoal.rank()
    x = np.arange(4.0)
    # Rank 0 sends three rows away and gets two.
    splits = [[1, 3], [1, 3]][rank]
    with pytest.raises(shoal.Mismatch, match=r"alltoall_ .* use alltoall"):
        shoal.alltoall_(x, splits=splits)
    check_goes_on()
    with pytest.raises(shoal.Mismatch, match=r"allgather_ .* use allgather"):
        shoal.allgather_(np.zeros(2 if rank else 4))
    check_goes_on()
    shoal.shutdown()


def test_results_that_do_not_fit_in_place_say_so() -> None:
    run_ranks(sizes_that_do_not_fit, 2)
