"""The environment of a rank or server that is started here, and the ports in it."""

import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.config.settings import SERVER_NAMES

HOST = "127.0.0.1"

# Of an environment, what another host has of its own: who and where this user is there, and what the shell keeps for itself.
_STAYS = {
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "GPG_TTY",
    "HOME",
    "HOST",
    "HOSTNAME",
    "KRB5CCNAME",
    "LOGNAME",
    "MAIL",
    "OLDPWD",
    "PWD",
    "SHELL",
    "SHLVL",
    "TMPDIR",
    "USER",
    "XAUTHORITY",
    "_",
}
_STAYS_BY_PREFIX = ("BASH_FUNC_", "SSH_", "XDG_")


@dataclass(frozen=True)
class Place:
    """Where a rank runs: its index in its node and how many that node has."""

    local_rank: int
    local_size: int


def spread(ranks: int, nodes: int) -> list[Place]:
    """The place of each rank when ``ranks`` are cut into ``nodes`` in order; where uneven, the first get one more.

    Raises ValueError unless 1 <= nodes <= ranks.
    """
    if not 1 <= nodes <= ranks:
        raise ValueError(f"{ranks} ranks cannot be spread over {nodes} nodes: every node needs at least one")
    share, more = divmod(ranks, nodes)
    sizes = [share + (node < more) for node in range(nodes)]
    return [Place(local_rank, size) for size in sizes for local_rank in range(size)]


def rank_environment(
    base: Mapping[str, str],
    places: Sequence[Place],
    rank: int,
    master_port: int,
    servers: Sequence[str],
    master_host: str = HOST,
) -> dict[str, str]:
    """The environment of one rank: ``base``, and on top of it who and where it is, as torchrun would say it.

    ``master_host`` is where all ranks reach rank 0. ``servers`` are ``host:port``; where there are none, SHOAL_SERVERS is left as it is in ``base``.
    """
    # Not those of a job that we may have been started in: the job here is ours.
    environment = {name: value for name, value in base.items() if not name.startswith("TORCHELASTIC_")}
    environment.pop("SHOAL_RENDEZVOUS", None)
    environment.update(
        RANK=str(rank),
        WORLD_SIZE=str(len(places)),
        LOCAL_RANK=str(places[rank].local_rank),
        LOCAL_WORLD_SIZE=str(places[rank].local_size),
        MASTER_ADDR=master_host,
        MASTER_PORT=str(master_port),
    )
    if servers:
        environment["SHOAL_SERVERS"] = ",".join(servers)
    # As torchrun: n processes with a thread a core each would only get in each other's way.
    if len(places) > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    # Output goes through a pipe, where Python would hold it back until 8 KiB have come together.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    return environment


def server_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a dedicated server of a job whose ranks have ``base``: of Shoal's variables those that concern it."""
    own = {name: value for name, value in base.items() if not name.startswith("SHOAL_") or name in SERVER_NAMES}
    return {**own, "PYTHONUNBUFFERED": "1"}


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment goes to another host: all that does not speak of this machine, this login or this shell."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _STAYS and not name.startswith(_STAYS_BY_PREFIX)
    }


def with_secret(base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with a fresh SHOAL_SECRET, unless a secret or a file with one is set there."""
    environment = dict(base)
    if not environment.get("SHOAL_SECRET") and not environment.get("SHOAL_SECRET_FILE"):
        environment["SHOAL_SECRET"] = secrets.token_hex(32)
    return environment


def free_master_port(host: str = HOST, ports: tuple[int, int] | None = None) -> int:
    """A port p such that p and p + 1 are free now. ``host``: a numeric address.

    ``ports``: the first and the last of those to choose from; without them these are outside of the range that outgoing
    connections take theirs from. Raises RuntimeError when there are none.
    """
    first, last = ports or _ports_to_choose_from()
    candidates = list(range(first, last))
    random.shuffle(candidates)  # jobs that begin at once do not all take the same ones
    for port in candidates:
        if _is_free(host, port) and _is_free(host, port + 1):
            return port
    what_helps = f"widen SHOAL_PORT_RANGE={first}-{last}" if ports else "set SHOAL_PORT_RANGE to ports that are free"
    raise RuntimeError(
        f"no two ports in a row from {first} to {last} are free on {host}, where the ranks are to meet: {what_helps}"
    )


def _ports_to_choose_from() -> tuple[int, int]:
    try:
        lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest_ephemeral = 32768
    # Where all ports are ephemeral, a collision is unlikely still.
    return (10000, lowest_ephemeral - 1) if lowest_ephemeral > 12000 else (20000, 60000)


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # What listens later does so too: connections of an earlier job in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
