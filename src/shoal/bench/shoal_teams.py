"""Starting Shoal's dedicated servers and its ranks: once as it is, and once for each variant of a plan.

Ranks of several variants use the same servers, which serve any number of jobs; only variants that ask for another number of
proxies or another build, or change a variable that concerns servers, get servers of their own, on the same hosts. Whoever has
no turn waits and costs nothing.
"""

import secrets
import sys
import time
from typing import Any

from shoal.bench.conductor import BenchError, Player
from shoal.bench.naming import SHOAL, variant_name
from shoal.bench.plan import Plan, Variant
from shoal.bench.teams import START_SECONDS, Troupe, base_environment, hosts_of_ranks
from shoal.processes import server_environment

# How the servers of a variant are started: their interpreter, their proxies and their environment.
_Kind = tuple[str, int | None, frozenset[tuple[str, str]]]


class ShoalTeams:
    """Everything of Shoal at one place. ``pids``: of all dedicated servers that were started."""

    def __init__(self, troupe: Troupe, plan: Plan) -> None:
        self.pids: list[int] = []
        self._troupe = troupe
        self._plan = plan
        self._secret = secrets.token_hex(32)
        # Their addresses.
        self._servers: dict[_Kind, list[str]] = {}

    def start(self, name: str | None = None) -> list[Player]:
        """The ranks of the variant of that name, or of Shoal as the plan has it. Raises BenchError."""
        place, plan = self._troupe.place, self._plan
        variant = Variant() if name is None else plan.variants[name]
        contestant = SHOAL if name is None else variant_name(name)
        environment = self._environment(variant)
        python = variant.python or sys.executable
        servers = self._servers_of(contestant, python, variant.proxies, server_environment(environment))
        meeting = f"{place.address(0)}:{place.free_ports(0, 1)}"
        hosts = hosts_of_ranks(place)
        store = {"host": place.address(0), "port": place.free_ports(0, 1), "size": len(hosts)} if variant.c10d else None
        arguments: dict[str, Any] = {"limits": {**plan.limits, **variant.limits}, "c10d": variant.c10d}
        if not variant.c10d:
            arguments |= {"window": variant.window, "shared": variant.shared}
        for rank, host in enumerate(hosts):
            own = environment | {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "LOCAL_RANK": str(rank % place.ranks_each),
                "LOCAL_WORLD_SIZE": str(place.ranks_each),
                "SHOAL_RENDEZVOUS": meeting,
            }
            if servers:
                own["SHOAL_SERVERS"] = ",".join(servers)
            if store is not None:
                arguments["store"] = store | {"rank": rank}
            command = self._troupe.member_command(contestant, place.address(host), arguments, python)
            self._troupe.start(host, f"{contestant.replace('/', '-')} rank {rank}", command, own)
        return self._troupe.stage.admit(len(hosts), START_SECONDS, self._troupe.alive)

    def _environment(self, variant: Variant) -> dict[str, str]:
        return base_environment() | {"SHOAL_SECRET": self._secret, **self._plan.environment, **variant.environment}

    def _servers_of(self, contestant: str, python: str, proxies: int | None, environment: dict[str, str]) -> list[str]:
        """Those that run already, if some were started in the same way."""
        kind = python, proxies, frozenset(environment.items())
        if kind not in self._servers:
            self._servers[kind] = self._start_servers(contestant, python, proxies, environment)
        return self._servers[kind]

    def _start_servers(
        self, contestant: str, python: str, proxies: int | None, environment: dict[str, str]
    ) -> list[str]:
        place = self._troupe.place
        many = [] if proxies is None else ["--proxies", str(proxies)]
        names = []
        for index in range(place.servers):
            host = place.nodes + index
            command = [python, "-m", "shoal.cli", "server", "--host", place.address(host), "--port", "0", *many]
            names.append(f"{contestant.replace('/', '-')} server {index}")
            self.pids.append(self._troupe.start(host, names[-1], command, environment).pid)
        return [self._listening_at(name) for name in names]

    def _listening_at(self, name: str) -> str:
        """What a server says once it listens. Raises BenchError."""
        deadline = time.monotonic() + START_SECONDS
        words = "listening on "
        while time.monotonic() < deadline:
            for line in self._troupe.tail(name).splitlines():
                if words in line:
                    return line.split(words)[1].split(",")[0]
            self._troupe.alive()
            time.sleep(0.02)
        raise BenchError(f"{name} did not listen in {START_SECONDS:g} s\n{self._troupe.tail(name)}")


__all__ = ["ShoalTeams"]
