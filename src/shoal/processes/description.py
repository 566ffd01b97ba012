"""What a job is: its program, its ranks, where they run, and its servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.processes.environment import Place, spread
from shoal.processes.hosts import Host, assign
from shoal.processes.program import Program


@dataclass(frozen=True)
class JobDescription:
    """What to run: ``program`` on each of ``ranks`` ranks, with ``servers`` of its own.

    The ranks are on ``hosts``, each of which is a node, and the servers on ``server_hosts`` by turns; without hosts everything
    is on this machine, and the ranks are cut into ``nodes``. Raises ValueError, in words for the one who asked, for what cannot
    be.
    """

    program: Program
    ranks: int
    nodes: int = 1
    servers: int = 0
    hosts: Sequence[Host] = ()
    server_hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"a job has at least one rank, not {self.ranks}")
        if self.servers < 0:
            raise ValueError(f"a job cannot have {self.servers} servers")
        self.places()
        if self.hosts:
            self._check_hosts()
        elif self.server_hosts:
            raise ValueError(
                "servers on other hosts are for ranks on other hosts: say where the ranks are (-H or --hostfile)"
            )
        elif self.servers and self.nodes == 1:
            raise ValueError(
                "with one node there is nothing for a server to do: add --nodes (for example "
                f"--nodes {max(2, self.ranks)}) to cut the ranks into nodes, or leave out --servers"
            )

    def _check_hosts(self) -> None:
        if self.nodes != 1:
            raise ValueError("each host is a node: leave out --nodes")
        if not self.servers:
            return
        if not self.server_hosts:
            raise ValueError(
                "say on which hosts the servers are: --server-hosts host3,host4. On the link of a node's own a server gains nothing"
            )
        taken = {host for host, _ in self.placed()}
        for host in self.server_hosts:
            if host in taken:
                raise ValueError(
                    f"{host} has ranks, and on the link of a node's own a server gains nothing: name other hosts in --server-hosts"
                )
        if len(taken) == 1:
            raise ValueError("with all ranks on one host there is nothing for a server to do: leave out --servers")

    def placed(self) -> list[tuple[str, Place]]:
        """Each rank's host and its place there; the host is "" where none was named."""
        if self.hosts:
            return assign(self.ranks, self.hosts)
        return [("", place) for place in spread(self.ranks, self.nodes)]

    def named_twice(self, machines: Mapping[str, str]) -> str:
        """What is wrong with the hosts, given the machine that each name has turned out to be; "" where nothing is."""
        if not self.hosts:
            return ""
        ranks = dict.fromkeys(host for host, _ in self.placed())
        names: dict[str, str] = {}
        for host in ranks:
            other = names.setdefault(machines[host], host)
            if other != host:
                return f"{other} and {host} are the same machine: name it once, with all its slots"
        for host in map(self.host_of_server, range(self.servers)):
            if (taken := names.get(machines[host])) is not None:
                return (
                    f"{host} is the machine of {taken}, which has ranks, and on the link of a node's own a server gains nothing: "
                    "name other hosts in --server-hosts"
                )
        return ""

    def places(self) -> list[Place]:
        return [place for _, place in self.placed()]

    def host_of_server(self, index: int) -> str:
        """ "" where none was named."""
        return self.server_hosts[index % len(self.server_hosts)] if self.server_hosts else ""
