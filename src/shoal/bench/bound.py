"""How fast an all-reduce can be at all: the time that links of given speeds need at least.

Nodes hold M bytes each. With servers, node i averages the fraction x_i of them itself and dedicated server j the fraction
y_j. In either direction a node's link then carries M (1 + (n - 2) x_i) bytes and a server's n y_j M. ``server_factor`` is the
least T·B/M over all such splits when all links have the speed B, ``bound`` the least T for any speeds.
"""

from collections.abc import Sequence


def server_factor(nodes: int, servers: int) -> float:
    """T·B/M with ``servers`` dedicated servers of the nodes' link speed: 2n(n-1) / (n² + kn - 2k), k counting up to n.

    0 for one node, which has no network.
    """
    if nodes < 2:
        return 0.0
    n, k = nodes, min(servers, nodes)
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k)


def allreduce_factor(nodes: int) -> float:
    """T·B/M without dedicated servers, for any all-reduce among equal nodes: 2(n-1)/n."""
    return server_factor(nodes, 0)


def bound(payload: float, node_rates: Sequence[float], server_rates: Sequence[float] = (), burst: float = 0.0) -> float:
    """Seconds that averaging through servers needs at least, with the best split for these links.

    ``payload``: bytes per node. ``node_rates``, ``server_rates``: bytes per second of each link in its slower direction (both
    directions carry the same). ``burst``: bytes that each link lets through for nothing. 0 for one node.

    In a time T node i can carry c_i = r_i T + burst, and has room for x_i = (c_i/M - 1) / (n - 2); server j can carry
    c_j = s_j T + burst, and has room for y_j = c_j / (n M). The least T is the one at which the rooms add up to 1, unless the
    slowest node needs longer for its own gradients alone. Without servers and with equal links this is 2(n-1)/n · M/B, which
    no all-reduce can go below.
    """
    n = len(node_rates)
    if n < 2:
        return 0.0
    slowest = (payload - burst) / min(node_rates)
    if n == 2:
        # A node's share costs its link nothing: what it keeps it need not send, what it returns it would have received.
        return max(0.0, slowest)
    room_per_second = sum(node_rates) / (n - 2) + sum(server_rates) / n
    room_at_once = burst * (n / (n - 2) + len(server_rates) / n)
    return max(0.0, slowest, (payload * (1 + n / (n - 2)) - room_at_once) / room_per_second)
