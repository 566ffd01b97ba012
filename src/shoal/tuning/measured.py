"""What was measured of a job's links: one rate for every node and dedicated server, and the round trip.

Measuring is noisy, and links differ for good reasons; so rates that are close to each other are taken for one.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Links within this share of the fastest of their kind count as equal to it.
NOISE = 0.15


@dataclass(frozen=True)
class Network:
    """``node_rates`` by rank, ``server_rates`` by dedicated server: bytes per second in a link's slower direction.

    ``round_trip``: the smallest one that TCP saw, in seconds.
    """

    node_rates: tuple[int, ...]
    server_rates: tuple[int, ...]
    round_trip: float

    @property
    def rate(self) -> int:
        """The fastest link's."""
        return max([*self.node_rates, *self.server_rates])

    def describe(self, ranks: Sequence[str], servers: Sequence[str]) -> str:
        """The usual rate, and whoever has another: "47.8 MB/s, rank 3 (c) 23.9 MB/s". ``ranks``, ``servers``: names."""
        rates = [*self.node_rates, *self.server_rates]
        usual = statistics.mode(rates)
        names = [*ranks, *(f"the server {name}" for name in servers)]
        others = [f"{name} {_megabytes(rate)}" for name, rate in zip(names, rates, strict=True) if rate != usual]
        return ", ".join([_megabytes(usual), *others[:_MOST_NAMED], *_more(others)])


_MOST_NAMED = 16


def _more(others: list[str]) -> list[str]:
    return [f"{len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []


def _megabytes(rate: float) -> str:
    return f"{rate / 1e6:.3g} MB/s"


def without_noise(rates: Sequence[float]) -> list[float]:
    """The same rates, but those within NOISE of the fastest are their median, and so on with the others."""
    found = dict.fromkeys(rates, 0.0)
    left = sorted(found, reverse=True)
    while left:
        close = [rate for rate in left if rate >= (1 - NOISE) * left[0]]
        middle = statistics.median(rate for rate in rates if rate in close)
        found.update(dict.fromkeys(close, middle))
        left = left[len(close) :]
    return [found[rate] for rate in rates]
