"""Who am I? The rank, the world size and the meeting place that a launcher has put into the environment.

Understood, in this order: torchrun (and whatever sets the same variables), Open MPI, MPICH and its relatives (PMI),
Slurm's ``srun``. Without any of them the job is this process alone. Only the mapping that is handed in is read.

A wrong value is a ConfigurationError that names the variable.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.config.addresses import Address, parse_host, parse_port
from shoal.errors import ConfigurationError

Environment = Mapping[str, str]

# Where a MASTER_PORT is derived from a job's id: below the ports that outgoing connections take theirs from.
_FIRST_DERIVED_PORT = 20000
_DERIVED_PORTS = 10000

# PyTorch's own default, for a MASTER_ADDR that comes without a port and a job without an id.
_DEFAULT_MASTER_PORT = 29500

# The variables that say which rank this is of how many, by launcher.
_RANK_AND_SIZE = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}

# How all ranks are started, by launcher.
_STARTS = {
    "torchrun": "torchrun does, or one process for each RANK",
    "Open MPI": "mpirun does",
    "MPICH": "mpiexec does",
    "Slurm": "srun does: srun python train.py",
}

# The most ranks of a job (native/base/limits.h).
MOST_RANKS = 16 * 1024


@dataclass(frozen=True)
class Launch:
    """What the launcher said. ``master_host`` is None where nobody said where rank 0 is.

    ``agent_store``: where torchrun's agent keeps a store for the ranks, if it does. ``said_by``: the variables, with their values,
    that say how many ranks there are and which this is. ``local_said_by``: the names of those that say where it is on its machine.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    master_host: str | None
    master_port: int
    job: str
    agent_store: Address | None = None
    said_by: tuple[str, ...] = ()
    local_said_by: tuple[str, ...] = ()

    @property
    def promise(self) -> str:
        """Who says that there are other ranks, and what to do if there are none: for whoever waits for them in vain.

        A shell inside a job (``srun --pty bash``) has the launcher's variables too, and what is started there has no others.
        """
        if not self.said_by:
            return ""
        unset = f" and unset {', '.join(self.local_said_by)}" if self.local_said_by else ""
        return (
            f"{' and '.join(self.said_by)} in the environment say that this is rank {self.rank} of {self.size}: start all of them "
            f"({_STARTS[self.launcher]}), or, if this process is to run alone, set RANK=0 and WORLD_SIZE=1{unset}"
        )

    @property
    def one_machine(self) -> bool:
        """Whether all ranks are known to be on one machine."""
        return self.local_size == self.size


def read_launch(environ: Environment) -> Launch:
    """Finds the launcher's variables. Raises ConfigurationError naming one that is missing or malformed."""
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _torchrun(environ)
    if "OMPI_COMM_WORLD_RANK" in environ:
        return _open_mpi(environ)
    if "PMI_RANK" in environ and not _is_slurms_pmi(environ):
        return _mpich(environ)
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        # A batch script is no task of a step, though it sees the allocation's SLURM_NTASKS.
        return _slurm(environ)
    return Launch("none", 0, 1, 0, 1, "127.0.0.1", _DEFAULT_MASTER_PORT, "")


def _torchrun(environ: Environment) -> Launch:
    rank, size = _rank_and_size(environ, "torchrun")
    local_rank, local_size = _local(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE", size)
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    launch = _launch(environ, "torchrun", rank, size, local_rank, local_size, job="" if run == "none" else run)
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or launch.master_host is None:
        return launch
    return replace(launch, agent_store=Address(launch.master_host, launch.master_port))


def _open_mpi(environ: Environment) -> Launch:
    rank, size = _rank_and_size(environ, "Open MPI")
    local_rank, local_size = _local(environ, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", size)
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")
    return _launch(environ, "Open MPI", rank, size, local_rank, local_size, identity=job)


def _mpich(environ: Environment) -> Launch:
    rank, size = _rank_and_size(environ, "MPICH")
    local_rank, local_size = _local(environ, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", size)
    job = environ.get("PMI_JOBID") or environ.get("PMIX_NAMESPACE") or environ.get("HYDRA_JOBID", "")
    return _launch(environ, "MPICH", rank, size, local_rank, local_size, identity=job)


def _is_slurms_pmi(environ: Environment) -> bool:
    """``srun --mpi=pmi2`` sets PMI_RANK too, and knows more under its own names. Under ``mpiexec`` they differ."""
    ours = (environ.get("PMI_RANK"), environ.get("PMI_SIZE"))
    return ours == (environ.get("SLURM_PROCID"), environ.get("SLURM_STEP_NUM_TASKS"))


def _slurm(environ: Environment) -> Launch:
    rank, size = _rank_and_size(environ, "Slurm")
    local_rank = _integer(environ, "SLURM_LOCALID", 0, size - 1) if "SLURM_LOCALID" in environ else 0
    local_size = _slurm_local_size(environ, size)
    if local_rank >= local_size:
        raise ConfigurationError(f"SLURM_LOCALID={local_rank} does not fit to {local_size} tasks on this node")
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    identity = f"slurm {job}.{step}" if job else ""
    return _launch(
        environ, "Slurm", rank, size, local_rank, local_size, identity=identity, first_host=first_host(nodes)
    )


def _slurm_local_size(environ: Environment, size: int) -> int:
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    if not text:
        return 1
    counts = tasks_per_node(text)
    node = _integer(environ, "SLURM_NODEID", 0, len(counts) - 1) if len(counts) > 1 else 0
    return min(counts[node], size)


def tasks_per_node(text: str) -> list[int]:
    """Slurm's run-length notation: ``2(x3),1`` is 2, 2, 2, 1. Raises ConfigurationError."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
            raise ConfigurationError(f"SLURM_TASKS_PER_NODE={text!r} is not of the form 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(nodes: str) -> str | None:
    """The first host of a Slurm node list, such as ``gpu[003-010,12],login`` or ``rack[1-2]node[1-8]``. None if the list is empty."""
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])*", nodes.strip())
    assert first is not None, "it matches nothing at least"
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) or None


def _launch(
    environ: Environment,
    launcher: str,
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    *,
    job: str = "",
    identity: str = "",
    first_host: str | None = None,
) -> Launch:
    """``identity`` tells two jobs of the launcher apart; it is the job's label only if it is nothing else."""
    host = _master_host(environ, first_host, local_size == size)
    launch = Launch(launcher, rank, size, local_rank, local_size, host, _master_port(environ, identity or job), job)
    # Those of torchrun come before all others, so they are what a process that is to run alone has to set, or not to have.
    local = tuple(name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name in environ)
    said_by = tuple(f"{name}={environ[name]}" for name in _RANK_AND_SIZE[launcher])
    return replace(launch, said_by=said_by, local_said_by=local)


def _master_host(environ: Environment, first_host: str | None, one_machine: bool) -> str | None:
    if "MASTER_ADDR" in environ:
        try:
            return parse_host(environ["MASTER_ADDR"])
        except ValueError as error:
            raise ConfigurationError(f"MASTER_ADDR: {error}") from None
    return "127.0.0.1" if one_machine else first_host


def _master_port(environ: Environment, identity: str) -> int:
    if "MASTER_PORT" in environ:
        try:
            return parse_port(environ["MASTER_PORT"])
        except ValueError as error:
            raise ConfigurationError(f"MASTER_PORT: {error}") from None
    if not identity:
        return _DEFAULT_MASTER_PORT
    # Even: the rendezvous of one job, a port higher, is not the master port of another.
    return _FIRST_DERIVED_PORT + 2 * (zlib.crc32(identity.encode()) % (_DERIVED_PORTS // 2))


def _rank_and_size(environ: Environment, launcher: str) -> tuple[int, int]:
    rank_name, size_name = _RANK_AND_SIZE[launcher]
    size = _integer(environ, size_name, 1, MOST_RANKS)
    return _integer(environ, rank_name, 0, size - 1), size


def _local(environ: Environment, rank_name: str, size_name: str, size: int) -> tuple[int, int]:
    """A launcher that does not say counts as one rank a machine; one that gives only the rank, as no more than needed."""
    local_size = _integer(environ, size_name, 1, size) if size_name in environ else None
    local_rank = _integer(environ, rank_name, 0, (local_size or size) - 1) if rank_name in environ else 0
    return local_rank, local_size or local_rank + 1


def _integer(environ: Environment, name: str, lowest: int, highest: int) -> int:
    text = environ.get(name)
    if text is None:
        raise ConfigurationError(f"{name} is not set although the launcher's other variables are: set both or neither")
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or not lowest <= int(text) <= highest:
        raise ConfigurationError(f"{name}={text!r} is not a whole number from {lowest} to {highest}")
    return int(text)
