"""launchers.py: what each launcher says about this process, and what it leaves open."""

import re
from dataclasses import replace

import pytest

from shoal.config.launchers import Launch, first_host, read_launch, tasks_per_node
from shoal.errors import ConfigurationError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-head-1234@1",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[003-005,9],login",
    "SLURM_JOB_ID": "88",
    "SLURM_STEP_ID": "0",
}


def test_without_a_launcher_the_job_is_this_process() -> None:
    launch = read_launch({"HOME": "/root"})
    assert (launch.rank, launch.size, launch.local_rank, launch.local_size) == (0, 1, 0, 1)


def test_torchrun() -> None:
    launch = replace(read_launch(TORCHRUN), said_by=(), local_said_by=())
    assert launch == Launch("torchrun", 3, 4, 1, 2, "head", 29500, "")
    assert read_launch({**TORCHRUN, "TORCHELASTIC_RUN_ID": "night"}).job == "night"


def test_torchruns_agent_may_have_a_store() -> None:
    with_store = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert read_launch(with_store).agent_store == ("head", 29500)
    assert read_launch({**with_store, "TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_store is None
    assert read_launch({name: value for name, value in with_store.items() if name != "MASTER_ADDR"}).agent_store is None


def test_rank_and_size_alone_count_as_one_rank_a_machine() -> None:
    launch = read_launch({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert (launch.local_rank, launch.local_size, launch.one_machine) == (0, 1, False)


def test_open_mpi_on_one_machine_meets_on_loopback() -> None:
    launch = read_launch(OPEN_MPI)
    assert (launch.launcher, launch.rank, launch.size, launch.local_rank) == ("Open MPI", 1, 4, 1)
    assert launch.master_host == "127.0.0.1"


def test_open_mpi_on_several_machines_does_not_say_where_rank_zero_is() -> None:
    assert read_launch({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}).master_host is None
    assert read_launch({**OPEN_MPI, "MASTER_ADDR": "fd00::1"}).master_host == "fd00::1"


def test_two_jobs_of_a_launcher_meet_at_different_ports() -> None:
    other = {**OPEN_MPI, "PMIX_NAMESPACE": "prterun-head-1235@1"}
    ports = {read_launch(OPEN_MPI).master_port, read_launch(other).master_port}
    assert len(ports) == 2
    assert all(20000 <= port < 30000 for port in ports)


def test_mpich() -> None:
    environ = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    launch = read_launch(environ)
    assert (launch.launcher, launch.rank, launch.size, launch.local_rank, launch.local_size) == ("MPICH", 2, 3, 0, 1)


def test_slurm_knows_the_first_host_and_this_nodes_tasks() -> None:
    launch = read_launch(SLURM)
    assert (launch.launcher, launch.rank, launch.size, launch.local_rank, launch.local_size) == ("Slurm", 5, 7, 1, 2)
    assert launch.master_host == "gpu003"
    assert read_launch({**SLURM, "SLURM_JOB_ID": "89"}).master_port != launch.master_port


def test_a_slurm_batch_script_is_no_task_of_a_step() -> None:
    assert read_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "88"}).size == 1


def test_mpich_under_slurm_is_mpich_but_slurms_own_pmi_is_slurm() -> None:
    pmi = {"PMI_RANK": "5", "PMI_SIZE": "7"}
    assert read_launch({**SLURM, **pmi}).launcher == "Slurm"
    assert read_launch({**SLURM, "PMI_RANK": "9", "PMI_SIZE": "14"}).launcher == "MPICH"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node7", "node7"),
        ("node[12-14]", "node12"),
        ("a[1,5]b,c", "a1b"),
        ("gpu-[007]", "gpu-007"),
        ("rack[1-2]node[1-2]", "rack1node1"),
        ("r[03,05-09]n[12-14,20]-ib,login", "r03n12-ib"),
        ("[2-3]x", "2x"),
        ("[", None),
        ("x.example.org,y", "x.example.org"),
        ("", None),
    ],
)
def test_first_host_of_a_slurm_node_list(text: str, host: str | None) -> None:
    assert first_host(text) == host


def test_tasks_per_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(ConfigurationError, match="TASKS_PER_NODE"):
        tasks_per_node("2(y3)")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"RANK": "4"}, "RANK='4'"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many'"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK='2'"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE='5'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT"),
        ({"MASTER_ADDR": "a b"}, "MASTER_ADDR"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        read_launch({**TORCHRUN, **changes})
    assert "\n" not in str(caught.value)


def test_half_of_a_launchers_variables_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="WORLD_SIZE is not set"):
        read_launch({"RANK": "0"})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (SLURM, "SLURM_PROCID=5 and SLURM_STEP_NUM_TASKS=7 in the environment say that this is rank 5 of 7: .*srun"),
        (
            TORCHRUN,
            r"RANK=3 and WORLD_SIZE=4 .*torchrun.* set RANK=0 and WORLD_SIZE=1 and unset LOCAL_RANK, LOCAL_WORLD",
        ),
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=4 .*mpirun"),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, "PMI_RANK=2 and PMI_SIZE=3 .*mpiexec"),
    ],
)
def test_what_promises_other_ranks_is_named_and_its_advice_makes_a_job_of_one(
    environ: dict[str, str], said: str
) -> None:
    promise = read_launch(environ).promise
    assert re.search(said, promise)
    unset = promise.partition(" unset ")[2].split(", ")
    alone = {**environ, **dict(re.findall(r"(\w+)=(\w+)", promise.partition("alone, set ")[2]))}
    launch = read_launch({name: value for name, value in alone.items() if name not in unset})
    assert (launch.rank, launch.size, launch.local_rank, launch.local_size) == (0, 1, 0, 1)


def test_nobody_promises_anything_to_a_process_of_its_own() -> None:
    assert read_launch({}).promise == ""
