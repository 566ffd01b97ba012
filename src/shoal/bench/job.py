"""The benchmark inside a job that a launcher has started: every process is a rank of every contestant.

Who can take part is agreed by an all-gather through Shoal, which also carries the address of the conductor: a thread
of rank 0's process. Servers are those of SHOAL_SERVERS; their processor time cannot be seen from here.
"""

import contextlib
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

import shoal
from shoal.bench import contestants
from shoal.bench.channel import ChannelClosed, Message, connect
from shoal.bench.conductor import BenchError, Conductor, Player, Stage, tcp_stage
from shoal.bench.contestants import Contestant
from shoal.bench.contestants.shoal_ranks import ShoalRanks
from shoal.bench.contestants.torch_ranks import usable_gpus
from shoal.bench.machine import machine_facts
from shoal.bench.mpi_wheels import LIBRARY_VARIABLE, find_wheel, library_is_named
from shoal.bench.naming import CONTESTANTS, RIVAL_VARIANTS, shown_name
from shoal.bench.part import Part, end_with_conductor, introduction
from shoal.bench.plan import Plan
from shoal.bench.progress import Progress
from shoal.bench.report import Network, Report, Result
from shoal.bench.watch import Watch
from shoal.config.addresses import Address, default_source, interface_addresses, is_loopback, is_unspecified
from shoal.config.launchers import Launch
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError

_JOIN_SECONDS = 300.0


def run_in_job(plan: Plan, progress: Progress) -> Report | None:
    """Measures ``plan`` in the job that this process is a rank of; None on ranks other than 0.

    Raises ConfigurationError for what cannot be, the errors of ``shoal.init``, BenchError when a process fails.
    """
    if plan.variants:
        raise ConfigurationError("variants of Shoal need processes of their own: measure them in a lab or on loopback")
    os.environ.update(plan.environment)
    settings = Settings.from_environment()
    if settings.size == 1:
        raise ConfigurationError(
            "nobody has started several ranks: run this under shoal run, torchrun or mpirun, or say --local n=4,servers=2 or "
            "--lab nodes=8,servers=8,rate=400mbit"
        )
    ranks = ShoalRanks(plan.limits, _launchers_store(settings.launch))
    with contextlib.ExitStack() as stack:
        stack.callback(ranks.close)
        stage = stack.enter_context(_stage(settings)) if ranks.rank == 0 else None
        agreed = _agree(plan, settings, ranks, stage)
        joined = _join_all(agreed, settings, ranks)
        channel = connect(agreed.control)
        stack.callback(channel.close)
        introduced = introduction(joined, agreed.token, channel.local_host())
        conducting = None
        if stage is not None:
            conducting = _Conducting(plan, settings, agreed, stage, progress)
            conducting.start()
        else:
            end_with_conductor(channel)
        try:
            Part(channel, joined, channel.local_host()).serve(introduced)
        except ChannelClosed:
            if conducting is None:
                raise BenchError(
                    f"rank 0 has ended the benchmark; what went wrong is said there (rank {ranks.rank})"
                ) from None
        # Before MPI is left, which holds Python's lock until all ranks do: the conductor has to tell them.
        report = None if conducting is None else conducting.report()
        for name in reversed(list(joined)):
            if name != "shoal":
                joined[name].close()
        return report
    raise AssertionError


@dataclass(frozen=True)
class _Agreement:
    """What all ranks know after the all-gather. ``store``: host and port of a store for PyTorch's contestants."""

    names: list[str]
    missing: dict[str, str]
    control: str
    token: str
    store: Any
    nodes: int


class _Conducting(threading.Thread):
    """Rank 0's conductor, beside the part that its process plays itself."""

    def __init__(self, plan: Plan, settings: Settings, agreed: _Agreement, stage: Stage, progress: Progress) -> None:
        super().__init__(name="bench-conductor", daemon=True)
        self._plan = plan
        self._settings = settings
        self._agreed = agreed
        self._stage = stage
        self._progress = progress
        self._players: list[Player] = []
        self._report: Report | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._players = self._stage.admit(self._settings.size, _JOIN_SECONDS, lambda: None)
            self._report = self._measure()
        except BaseException as error:
            self._error = error
        finally:
            for player in self._players:
                player.channel.close()

    def report(self) -> Report:
        """Waits for the end. Raises what went wrong."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report

    def _measure(self) -> Report:
        one_machine = len({player.machine for player in self._players}) == 1
        conductor = Conductor(
            dict.fromkeys(self._agreed.names, self._players),
            Watch(machine=one_machine),
            self._plan.patience,
            lambda: None,
        )
        self._progress.say("measuring the link")
        conductor.compare_clocks()
        network = _network(conductor.link_rate(), one_machine, self._agreed.nodes, len(self._settings.servers))
        results: list[Result] = []
        for size in self._plan.sizes:
            results += conductor.measure(self._plan, size, self._progress)
        report = Report(
            title="all-reduce",
            ranks=self._settings.size,
            nodes=self._agreed.nodes,
            servers=len(self._settings.servers),
            network=network,
            results=tuple(results),
            versions={name: self._players[0].versions[name] for name in self._agreed.names},
            limits=self._players[0].limits,
            facts={**machine_facts(), "place": _place(self._players, self._settings)},
            missing=self._agreed.missing,
        )
        conductor.close()
        return report


def _network(rate: float, one_machine: bool, nodes: int, servers: int) -> Network:
    return Network(rate, shaped=not one_machine, node_factors=(1.0,) * nodes, server_factors=(1.0,) * servers)


def _place(players: Sequence[Player], settings: Settings) -> str:
    machines = len({player.machine for player in players})
    return f"{len(players)} ranks on {machines} addresses, started by {settings.launch.launcher}"


def _agree(plan: Plan, settings: Settings, ranks: ShoalRanks, stage: Stage | None) -> _Agreement:
    """Tells every rank what the others can do and where the conductor listens."""
    mine: Message = {"missing": _missing(settings), "node": settings.local_rank == 0}
    if stage is not None:
        mine |= {"control": stage.address, "token": stage.token, "store": _open_store(stage.address, settings.size)}
    text = json.dumps(mine).encode() + b"\n"
    gathered = shoal.allgather(numpy.frombuffer(text, dtype=numpy.uint8))
    everyone: list[Message] = [json.loads(line) for line in bytes(gathered).splitlines()]
    missing: dict[str, str] = {}
    for rank, said in enumerate(everyone):
        for name, why in said["missing"].items():
            everywhere = all(name in other["missing"] for other in everyone)
            missing.setdefault(name, why if everywhere else f"{why} (rank {rank})")
    for name in plan.contestants:
        if name in missing:
            raise ConfigurationError(f"{name} cannot take part: {missing[name]}")
    wanted = plan.contestants or CONTESTANTS
    first = everyone[0]
    return _Agreement(
        names=[name for name in wanted if name not in missing],
        missing={name: why for name, why in missing.items() if name in wanted},
        control=first["control"],
        token=first["token"],
        store=first["store"],
        nodes=sum(said["node"] for said in everyone),
    )


def _missing(settings: Settings) -> dict[str, str]:
    """Contestant → why it cannot take part in this process."""
    launcher = settings.launch.launcher
    checks: dict[str, Callable[[], str | None]] = {
        "gloo": lambda: None if importlib.util.find_spec("torch") else "PyTorch is not installed",
        "openmpi": lambda: _why_not_mpi("openmpi", launcher),
        "mpich": lambda: _why_not_mpi("mpich", launcher),
        "horovod": lambda: _why_not_horovod(launcher),
        "nccl": lambda: None if usable_gpus() >= settings.local_size else "there is no GPU for every rank",
    }
    reasons = {name: check() for name, check in checks.items()}
    reasons |= dict.fromkeys(RIVAL_VARIANTS, "its settings need processes of its own: measure in a lab or on loopback")
    return {name: why for name, why in reasons.items() if why is not None}


def _why_not_mpi(name: str, launcher: str) -> str | None:
    if launcher != shown_name(name):
        return f"the ranks were started by {launcher}, not by its mpirun"
    try:
        if not library_is_named():
            find_wheel(name)
    except ImportError as error:
        return str(error)
    return None


def _why_not_horovod(launcher: str) -> str | None:
    if not importlib.util.find_spec("horovod"):
        return "not installed"
    started = "HOROVOD_RANK" in os.environ or launcher in ("Open MPI", "MPICH")
    return None if started else "the ranks were started neither by horovodrun nor by an mpirun"


def _join_all(agreed: _Agreement, settings: Settings, ranks: ShoalRanks) -> dict[str, Contestant]:
    """In the same order everywhere."""
    joined: dict[str, Contestant] = {}
    for name in agreed.names:
        if name == "shoal":
            joined[name] = ranks
            continue
        arguments: dict[str, Any] = {}
        if name in ("gloo", "nccl"):
            arguments |= {"rank": ranks.rank, "size": ranks.size}
        if name == "gloo":
            if settings.launch.one_machine:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            arguments["store"] = _store(agreed, ranks)
        if name == "nccl":
            arguments["local_rank"] = settings.local_rank
            arguments["store"] = _store(agreed, ranks)
        joined[name] = contestants.join(name, arguments)
        if joined[name].size != ranks.size:
            # Each would be alone, and fast.
            raise ConfigurationError(
                f"rank {ranks.rank}: {joined[name].version} has {joined[name].size} ranks of {ranks.size}, so its library is "
                f"not that of the mpirun that has started them: set {LIBRARY_VARIABLE} to the library of that mpirun, or "
                f"start them with the mpirun of {os.environ.get(LIBRARY_VARIABLE, 'the library that mpi4py finds')}"
            )
    return joined


# Rank 0's, which lives as long as the process.
_stores: list[Any] = []


def _open_store(control: str, size: int) -> Any:
    """Where PyTorch's contestants will meet: host and port; None without PyTorch."""
    if not importlib.util.find_spec("torch"):
        return None
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host = control.rpartition(":")[0].strip("[]")
    store = TCPStore(host, 0, size, is_master=True, wait_for_workers=False)
    _stores.append(store)
    return {"host": host, "port": store.port}


def _store(agreed: _Agreement, ranks: ShoalRanks) -> Any:
    if not _stores:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        _stores.append(TCPStore(agreed.store["host"], agreed.store["port"], ranks.size, is_master=False))
    return _stores[0]


def _launchers_store(launch: Launch) -> Any:
    """torchrun's, where it is the launcher and PyTorch therefore there: no variable of Shoal's own has to be set."""
    if launch.agent_store is None:
        return None
    from shoal.torch.runtime import launchers_store

    return launchers_store(launch)


def _stage(settings: Settings) -> Any:
    """Rank 0's listening socket, at an address that the other ranks reach."""
    for host in _own_hosts(settings):
        with contextlib.suppress(OSError):
            stage = tcp_stage(host)
            return contextlib.closing(stage)
    raise BenchError("rank 0 found no address of its own to listen on: set SHOAL_INTERFACE")


def _own_hosts(settings: Settings) -> list[str]:
    if settings.launch.one_machine:
        return ["127.0.0.1"]
    hosts = list(interface_addresses(settings.interfaces)) if settings.interfaces else []
    meeting: Address | None = settings.meeting_place()
    if meeting is not None and not is_loopback(meeting.host) and not is_unspecified(meeting.host):
        hosts.append(meeting.host)
    return [*hosts, *filter(None, [default_source()]), "127.0.0.1"]
