"""Terms of a job, without one."""

from shoal.assembly.terms import rank_name, rank_on


def test_a_rank_is_called_as_the_core_calls_it() -> None:
    assert rank_on(1, "b") == rank_name(1, ["a", "b"]) == "rank 1 (b)"
