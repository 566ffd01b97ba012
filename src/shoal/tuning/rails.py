"""Who averages how much where lanes are spread over several networks (rails): integer weights, by rail and server.

On each rail alone the balance is that of ``shares``: with its best split, averaging M bytes takes M tau there. All rails end
together if rail i carries the part (1 / tau_i) / (the sum of all 1 / tau) of every operation. In a time T nodes then average
as many bytes as the rails would one by one.
"""

import math
from collections.abc import Sequence

from shoal.tuning.measured import Network
from shoal.tuning.shares import link_shares, rate_of_shares, server_weights, weight_of


def rail_weights(networks: Sequence[Network], colocated: str) -> list[list[int]]:
    """By rail, the weights of the nodes' and then of the dedicated servers. ``networks``: with one rate for each node."""
    n, k = len(networks[0].node_rates), len(networks[0].server_rates)
    if n < 2 or len({rate for network in networks for rate in (*network.node_rates, *network.server_rates)}) == 1:
        near, far = server_weights(n, k, colocated)
        return [[near] * n + [far] * k for _ in networks]
    shares = []
    for network in networks:
        near_shares, far_shares = link_shares(network.node_rates, network.server_rates, colocated)
        shares.append([*near_shares, *far_shares])
    rates = [rate_of_shares(split, network) for split, network in zip(shares, networks, strict=True)]
    parts = [[share * rate for share in split] for split, rate in zip(shares, rates, strict=True)]
    largest = max(max(split) for split in parts)
    return [[weight_of(part / largest) for part in split] for split in parts]


def rate_over(weights: Sequence[Sequence[int]], networks: Sequence[Network]) -> float:
    """Bytes per second of a node's gradients that servers of these weights average, over all rails together.

    0: no link bounds it, since there is one node, which averages for itself.
    """
    whole = sum(map(sum, weights))
    rates = []
    for of_rail, network in zip(weights, networks, strict=True):
        shares = [weight / whole for weight in of_rail]
        rates.append(rate_of_shares(shares, network, sum(shares)))
    slowest = min(rates)
    return slowest if math.isfinite(slowest) else 0.0


def together(networks: Sequence[Network]) -> Network:
    """All rails as one network: the rates of each rank and server added up, the fastest rail's round trip."""
    return Network(
        tuple(map(sum, zip(*(network.node_rates for network in networks), strict=True))),
        tuple(map(sum, zip(*(network.server_rates for network in networks), strict=True))),
        fastest(networks).round_trip,
    )


def filled(networks: Sequence[Network | None]) -> list[Network] | None:
    """A rail of which nothing was found out counts as the slowest of the others. None if nothing is known of any."""
    known = [network for network in networks if network is not None]
    if not known:
        return None
    slowest = min(known, key=lambda network: network.rate)
    return [network or slowest for network in networks]


def fastest(networks: Sequence[Network]) -> Network:
    return max(networks, key=lambda network: network.rate)
