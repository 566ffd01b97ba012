"""Operations of the backend "shoal" on tensors that lie in memory in any way: beside plain computation, and beside their neighbours."""

import c10d_views
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.testing import run_ranks

CASES = st.tuples(
    st.integers(0, 1000),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(c10d_views.DTYPES),
    st.sampled_from(c10d_views.LAYOUTS),
    st.sampled_from(c10d_views.LAYOUTS),
)


# One job for many cases: to start one takes seconds.
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(st.lists(CASES, min_size=5, max_size=5))
def test_every_operation_takes_and_fills_tensors_of_any_layout(
    cases: list[tuple[int, int, int, str, str, str]],
) -> None:
    assert run_ranks(c10d_views.run_cases, 3, cases) == [len(cases)] * 3
