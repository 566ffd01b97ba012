"""Starting the ranks of Open MPI and MPICH with their own launchers, over TCP alone.

Their launchers start a daemon on every host through something like ssh; here it is an agent, a small shell script that
knows a host's address and the command that runs a program on it. All network namespaces of a machine have one
hostname, which Open MPI takes for one node, so the agent gives every host a UTS namespace with a name of its own.
Shared memory is switched off where hosts have a rank each: they stand for machines. Where a host has several ranks, these share it.
On loopback everything is one host to the launcher.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.bench import teams
from shoal.bench.conductor import Player
from shoal.bench.contestants.mpi import ABI_VARIABLE, MPICH_ALGORITHM, mpich_environment

# Debian's names first: both may be installed, and what "mpirun" means is a matter of alternatives.
_LAUNCHERS = {"openmpi": ("mpirun.openmpi", "orterun", "mpirun"), "mpich": ("mpirun.mpich", "mpiexec.hydra")}

# The fastest found where ranks share processors and links are slow: docs/benchmarks.md, "What the rivals are given".
OPENMPI_SETTINGS = {
    "mpi_yield_when_idle": "1",
    "coll_libnbc_iallreduce_algorithm": "1",  # ring
    "btl_tcp_eager_limit": str(8 * 1024 * 1024),
}
MPICH_SETTINGS = {MPICH_ALGORITHM: "tsp_ring", "UCX_RNDV_THRESH": "1g"}
# Older ones call that algorithm something else, and refuse to start with a name that they do not know.
_MPICH_WITH_RING = (4, 0)

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


def start_openmpi(troupe: teams.Troupe, settings: Mapping[str, str] = OPENMPI_SETTINGS) -> list[Player]:
    """Raises FileNotFoundError or ImportError for what is not installed, BenchError."""
    place = troupe.place
    launcher = _launcher("openmpi")
    lab = place.address(0) != place.address(1)
    options = {
        "pml": "ob1",
        "btl": "tcp,self" if place.ranks_each == 1 else "tcp,vader,self",
        "btl_tcp_if_include": place.interface(),
        "oob_tcp_if_include": place.interface(),
        **settings,
    }
    if lab:
        options |= {"plm_rsh_agent": str(_write_agent(troupe)), "plm_rsh_no_tree_spawn": "1"}
    hosts = ",".join(f"{place.address(host)}:{place.ranks_each}" for host in range(place.nodes)) if lab else ""
    command = [
        launcher,
        *("--allow-run-as-root" for _ in range(os.geteuid() == 0)),
        *(["--host", hosts] if lab else ["--oversubscribe"]),
        *(word for name, value in options.items() for word in ("--mca", name, value)),
        *("-n", str(place.nodes * place.ranks_each), "--bind-to", "none"),
    ]
    environment = teams.base_environment() | {ABI_VARIABLE: "openmpi"}
    return _start(troupe, "openmpi", command, environment, lab)


def start_mpich(troupe: teams.Troupe, settings: Mapping[str, str] = MPICH_SETTINGS) -> list[Player]:
    """Raises FileNotFoundError or ImportError for what is not installed, BenchError."""
    place = troupe.place
    launcher = _launcher("mpich")
    lab = place.address(0) != place.address(1)
    environment = teams.base_environment() | mpich_environment(troupe.folder)
    environment |= {
        ABI_VARIABLE: "mpich",
        # TCP below, whichever of its two network layers it was built with.
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": place.interface(),
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": place.interface(),
        **settings,
    }
    if place.ranks_each == 1:
        environment |= {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_SHM_ENABLE": "0"}
    if _mpich_version(launcher) < _MPICH_WITH_RING:
        environment.pop(MPICH_ALGORITHM, None)
    command = [launcher, "-n", str(place.nodes * place.ranks_each)]
    if lab:
        hosts = ",".join(f"{place.address(host)}:{place.ranks_each}" for host in range(place.nodes))
        command += ["-launcher", "ssh", "-launcher-exec", str(_write_agent(troupe)), "-hosts", hosts]
        command += ["-iface", place.interface()]
    return _start(troupe, "mpich", command, environment, lab)


def _start(
    troupe: teams.Troupe, name: str, launcher: Sequence[str], environment: dict[str, str], lab: bool
) -> list[Player]:
    if importlib.util.find_spec("mpi4py") is None:
        raise ImportError("mpi4py is not installed: pip install 'shoal[bench]'")
    place = troupe.place
    member = troupe.member_command(
        name, [place.address(host) for host in teams.hosts_of_ranks(place)], {"sharing": True}
    )
    # The first host runs the launcher, and Open MPI its ranks too, without the agent.
    command = [*_renamed(0), shlex.join([*launcher, *member])] if lab else [*launcher, *member]
    troupe.start(0, f"{name} launcher", command, environment)
    return troupe.stage.admit(place.nodes * place.ranks_each, teams.START_SECONDS, troupe.alive)


def _launcher(name: str) -> str:
    for word in _LAUNCHERS[name]:
        path = shutil.which(word)
        if path is not None and _is_of(name, path):
            return path
    raise FileNotFoundError(f"its launcher ({' or '.join(_LAUNCHERS[name])}) is not installed")


def _is_of(name: str, path: str) -> bool:
    """Whether a launcher is that MPI's: by its name, where it says so."""
    real = Path(path).resolve().name
    return "hydra" in real or "mpich" in real if name == "mpich" else "hydra" not in real and "mpich" not in real


def _mpich_version(launcher: str) -> tuple[int, ...]:
    """(4, 0, 2); () if it does not say."""
    said = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    match = re.search(r"Version:\s*(\d+(?:\.\d+)*)", said)
    return tuple(map(int, match[1].split("."))) if match else ()


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


__all__ = ["start_mpich", "start_openmpi"]
