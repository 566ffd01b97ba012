"""Training with DistributedDataParallel gives the model that a single process would have trained."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_training
from torch_training import Trained

from shoal.testing import run_ranks

RANKS = 4
ROOT = Path(__file__).parents[2]


def train(servers: int) -> list[Trained]:
    # Small buffers, so that there are several, cut into shards and segments.
    return run_ranks(torch_training.train_together, RANKS, 0.005, servers=servers)


@pytest.fixture(scope="module")
def with_two_servers() -> list[Trained]:
    return train(servers=2)


def test_all_ranks_hold_the_same_bits(with_two_servers: list[Trained]) -> None:
    assert len({trained.digest for trained in with_two_servers}) == 1


@pytest.mark.parametrize("servers", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 2, 3))])
def test_any_number_of_servers_gives_the_same_bits_in_every_run(with_two_servers: list[Trained], servers: int) -> None:
    assert {trained.digest for trained in train(servers)} == {with_two_servers[0].digest}


def test_the_model_is_that_of_a_single_process(with_two_servers: list[Trained]) -> None:
    together = torch.tensor(with_two_servers[0].parameters)
    alone = torch.tensor(run_ranks(torch_training.train_alone, 1)[0].parameters)
    untrained = torch.cat([parameter.detach().reshape(-1) for parameter in torch_training.make_model().parameters()])
    difference = (together - alone).norm() / alone.norm()
    assert difference <= 1e-5
    assert (untrained - alone).norm() / alone.norm() > 0.1, "nothing was learned, so nothing is shown"


def test_averaging_overlaps_the_backward_pass() -> None:
    results = run_ranks(torch_training.first_result_comes_during_the_backward_pass, RANKS, servers=2)
    assert results == [(True, True, True)] * RANKS


@pytest.mark.slow
def test_the_example_trains_digits_and_matches_a_single_process() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "run", "-n", "4", "--nodes", "4", "--servers", "2", "examples/digits.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    together, alone = re.findall(r"test accuracy, .*: +([\d.]+) %", run.stdout)
    assert float(together) >= 97
    assert float(alone) >= 97
    difference = re.search(r"largest relative difference .*: ([\d.e+-]+)", run.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-4


@pytest.mark.slow
def test_the_example_divides_parameters_inside_nodes_and_matches_a_single_process() -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "examples/hsdp.py",
        "--shard",
        "2",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    difference = re.search(r"parameters divided among 2: at most ([\d.e+-]+) from one process", run.stdout)
    assert difference is not None, run.stdout
    assert float(difference[1]) < 1e-5


def test_torchrun_needs_no_variable_of_shoal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, torch_training\n"
        "assert not [name for name in os.environ if name.startswith('SHOAL_')]\n"
        "assert 'LOCAL_RANK' in os.environ\n"
        "digest = torch_training.train_together(None).digest\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        '(folder / f"rank{torch_training.shoal.torch.rank()}").write_text(digest)\n'
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", str(script)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    digests = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
    assert digests[0] == digests[1]
