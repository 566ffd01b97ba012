"""Who averages how much: the servers of a job, in the order of their indices, and their integer weights.

design's balance, for n nodes and k dedicated servers with links of equal speed: each co-located server averages the
fraction x and each dedicated one y = (1 - n x) / k of a buffer, with x = (n - k) / (n² + k n - 2 k) for 0 ≤ k ≤ n. Then
y = 2 (n - 1) / (n² + k n - 2 k), so that the weights n - k and 2 (n - 1) say the same without a fraction.
"""

from dataclasses import dataclass

from shoal.addresses import Address
from shoal.errors import ConfigurationError


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
    """The weights of a co-located and of a dedicated server. ``colocated``: auto, always or never."""
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


def server_places(hosts: list[str], dedicated: tuple[Address, ...], colocated: str) -> list[ServerPlace]:
    """All servers of a job: first the co-located ones by rank, then the dedicated ones in the order given."""
    near, far = server_weights(len(hosts), len(dedicated), colocated)
    return [
        *(ServerPlace(host, near, rank=rank) for rank, host in enumerate(hosts)),
        *(ServerPlace(address.host, far, address=address) for address in dedicated),
    ]
