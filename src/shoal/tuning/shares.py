"""Who averages how much: the servers of a job, in the order of their indices, and their integer weights.

The balance of docs/algorithms.md. n nodes average M bytes; node i's server averages the fraction x_i of them and dedicated server j the
fraction y_j. In either direction a node's link then carries M (1 + (n - 2) x_i) and a dedicated server's n y_j M. So in a
time T, with r the rate of a link and tau = T / M, they have room for

    x_i ≤ (r_i tau - 1) / (n - 2)      y_j ≤ r_j tau / n

and the least tau is the one for which all rooms add up to 1, but never less than 1 / r_i: a node must send what it has.
With two nodes a share costs its node nothing.

For k dedicated servers and links of equal speed x = (n - k) / (n² + k n - 2 k) and y = 2 (n - 1) / (n² + k n - 2 k), so that
the weights n - k and 2 (n - 1) say the same without a fraction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.config.addresses import Address
from shoal.errors import ConfigurationError
from shoal.tuning.measured import Network

# Of the largest share where links differ: fine enough for any number of servers.
LARGEST_WEIGHT = 10_000

# A share below this part of the largest is none: it would gain less than its connections cost.
_WORTH_IT = 0.05


@dataclass(frozen=True)
class ServerPlace:
    """One server, its lanes counted as one. Either in a rank's process, or dedicated and at an address."""

    host: str
    weight: int
    rank: int | None = None
    address: Address | None = None

    def __str__(self) -> str:
        return f"{self.host} (rank {self.rank})" if self.address is None else str(self.address)


def server_weights(nodes: int, dedicated: int, colocated: str = "auto") -> tuple[int, int]:
    """The weights of a co-located and of a dedicated server, for equal links. ``colocated``: auto, always or never."""
    if colocated == "never" and dedicated == 0:
        raise ConfigurationError("SHOAL_COLOCATED=never needs dedicated servers: set SHOAL_SERVERS")
    if nodes == 1:
        return 1, 0  # one node has no network to save
    if dedicated == 0:
        return 1, 0
    if colocated == "always":
        return 1, 1
    if colocated == "never" or dedicated >= nodes:
        return 0, 1
    return nodes - dedicated, 2 * (nodes - 1)


def least_time(node_rates: Sequence[float], server_rates: Sequence[float] = ()) -> float:
    """tau: the seconds per byte of a node's gradients that averaging takes at least, with the best split.

    ``node_rates``, ``server_rates``: bytes per second of each link in its slower direction. 0 for one node.
    """
    n = len(node_rates)
    if n < 2:
        return 0.0
    own = 1 / min(node_rates)
    if n == 2:
        return own
    return max(own, (1 + n / (n - 2)) / (sum(node_rates) / (n - 2) + sum(server_rates) / n))


def link_shares(
    node_rates: Sequence[float], server_rates: Sequence[float], colocated: str = "auto"
) -> tuple[list[float], list[float]]:
    """The fractions that nodes and dedicated servers average, which add up to 1, for links of these rates.

    ``auto`` takes the least time. In it dedicated servers are filled first, and the rest goes to the nodes in proportion
    to their room. ``never``: dedicated servers alone, ``always``: everyone, both in proportion to rates.
    """
    if colocated == "never":
        return [0.0] * len(node_rates), _divided(1.0, server_rates)
    if colocated == "always" and server_rates:
        everyone = _divided(1.0, [*node_rates, *server_rates])
        return everyone[: len(node_rates)], everyone[len(node_rates) :]
    tau, n = least_time(node_rates, server_rates), len(node_rates)
    far = min(1.0, tau * sum(server_rates) / n)
    # At the least time the slowest node may have no room at all, which must not be a little less than none.
    room = [max(0.0, rate * tau - 1) for rate in node_rates] if n > 2 else [1.0] * n
    return _divided(1.0 - far, room), _divided(far, server_rates)


def _divided(whole: float, parts: Sequence[float]) -> list[float]:
    """``whole`` in proportion to these parts."""
    total = sum(parts)
    return [whole * part / total if total else 0.0 for part in parts]


def weights_for(network: Network, colocated: str = "auto") -> tuple[list[int], list[int]]:
    """The weights of the nodes' and of the dedicated servers, for the links that were measured."""
    n, k = len(network.node_rates), len(network.server_rates)
    if len({*network.node_rates, *network.server_rates}) == 1:
        near, far = server_weights(n, k, colocated)
        return [near] * n, [far] * k
    near_shares, far_shares = link_shares(network.node_rates, network.server_rates, colocated)
    largest = max([*near_shares, *far_shares])
    weights = [weight_of(share / largest) for share in [*near_shares, *far_shares]]
    return weights[:n], weights[n:]


def weight_of(part: float) -> int:
    """``part``: of the largest share."""
    return round(LARGEST_WEIGHT * part) if part >= _WORTH_IT else 0


def rate_of(servers: Sequence[ServerPlace], network: Network) -> float:
    """Bytes per second of a node's gradients that these servers average, if every link is as fast as was measured.

    ``servers``: one for each node, then the dedicated ones, as the rates of ``network``.
    """
    whole = sum(server.weight for server in servers)
    if len(network.node_rates) < 2:
        return math.inf
    return rate_of_shares([server.weight / whole for server in servers], network)


def rate_of_shares(shares: Sequence[float], network: Network, part: float = 1.0) -> float:
    """The same for these fractions of all bytes. ``part``: what this network carries, which they add up to."""
    n = len(network.node_rates)
    nodes = [(part + (n - 2) * share) / rate for share, rate in zip(shares, network.node_rates, strict=False)]
    far = [n * share / rate for share, rate in zip(shares[n:], network.server_rates, strict=True)]
    longest = max([*nodes, *far])
    return 1 / longest if longest > 0 else math.inf


def server_places(
    hosts: list[str],
    dedicated: tuple[Address, ...],
    colocated: str,
    network: Network | None = None,
    leaders: Sequence[int] = (),
) -> list[ServerPlace]:
    """All servers of a job: first the co-located ones by rank, then the dedicated ones in the order given.

    ``network``: one rate for each node; None where nothing was measured; then all links count as equal. ``leaders``: by
    rank, the first of its node, whose server averages the node's share; () if each rank is a node.
    """
    nodes = sorted(set(leaders or range(len(hosts))))
    if network is None or len(hosts) == 1:
        near, far = server_weights(len(nodes), len(dedicated), colocated)
        near_weights, far_weights = [near] * len(nodes), [far] * len(dedicated)
    else:
        near_weights, far_weights = weights_for(network, colocated)
    weight_of = dict(zip(nodes, near_weights, strict=True))
    return [
        *(ServerPlace(host, weight_of.get(rank, 0), rank=rank) for rank, host in enumerate(hosts)),
        *(ServerPlace(address.host, far_weights[j], address=address) for j, address in enumerate(dedicated)),
    ]
