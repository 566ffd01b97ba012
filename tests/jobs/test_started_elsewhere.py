"""Jobs that somebody else starts: torchrun, Open MPI, MPICH, each as a user calls it.

The MPI launchers are Debian's ``openmpi-bin`` and ``mpich``; where they are not installed their tests cannot run. Slurm
needs daemons of its own: its variables are tested in tests/unit/test_launchers.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sum_of_ranks.py")
RANKS = 3


def run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    # As root in a container, Open MPI wants to be told that this is meant.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def assert_all_ranks_summed(output: str) -> None:
    for rank in range(RANKS):
        assert f"rank {rank} of {RANKS}: the sum is {RANKS * (RANKS + 1) // 2}" in output


def test_torchrun_starts_a_job() -> None:
    pytest.importorskip("torch")
    assert_all_ranks_summed(
        run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(SCRIPT)])
    )


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpiexec.mpich"])
def test_an_mpi_launcher_starts_a_job(launcher: str) -> None:
    command = shutil.which(launcher)
    if command is None:
        pytest.skip(f"{launcher} is not installed")
    oversubscribe = ["--oversubscribe"] if launcher == "mpirun.openmpi" else []
    assert_all_ranks_summed(run([command, *oversubscribe, "-n", str(RANKS), sys.executable, str(SCRIPT)]))
