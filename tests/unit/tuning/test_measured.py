"""measured.py: noise is no difference, and real differences stay."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.tuning.measured import NOISE, Network, without_noise

rates = st.lists(st.floats(1e5, 1e11), min_size=1, max_size=40)


def test_rates_close_to_the_fastest_are_their_median() -> None:
    assert without_noise([100.0, 98.0, 86.0, 99.0]) == [98.5] * 4


def test_a_link_of_half_the_rate_stays_one() -> None:
    assert without_noise([100.0, 51.0, 99.0, 49.0, 98.0]) == [99.0, 50.0, 99.0, 50.0, 99.0]


@given(rates)
def test_nobody_moves_further_than_noise(given_rates: list[float]) -> None:
    found = without_noise(given_rates)
    for before, after in zip(given_rates, found, strict=True):
        assert (1 - NOISE) * before <= after * (1 + 1e-9)
        assert (1 - NOISE) * after <= before * (1 + 1e-9)


@given(rates)
def test_the_order_is_kept(given_rates: list[float]) -> None:
    pairs = sorted(zip(given_rates, without_noise(given_rates), strict=True))
    afterwards = [after for _, after in pairs]
    assert afterwards == sorted(afterwards)


def test_the_description_names_who_differs() -> None:
    network = Network((50_000_000, 50_000_000, 25_000_000), (50_000_000, 10_000_000), 60e-6)
    assert network.rate == 50_000_000
    text = network.describe(["rank 0", "rank 1", "rank 2"], ["a:1", "b:2"])
    assert text == "50 MB/s, rank 2 25 MB/s, the server b:2 10 MB/s"
