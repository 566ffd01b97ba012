"""``shoal.torch.comm_hook``: gradients by Shoal, in a program that keeps its process group.

What goes wrong in it is in test_c10d.py, beside what goes wrong in PyTorch's own hooks.
"""

import subprocess
import sys
from pathlib import Path

import comm_hook_scenarios
import pytest

from shoal.testing import run_ranks


def test_two_ranks() -> None:
    for found in run_ranks(comm_hook_scenarios.two_ranks, 2):
        # Two numbers have one sum, whoever adds them; dividing by two before or after makes no difference.
        for how in ("plain", "gradient_as_bucket_view", "static_graph", "no_sync", "join"):
            assert found[how], f"{how}: other parameters than without the hook"
        assert found["compressed"] == [1.0] * 3, "1 + 2^-13 is no float16"
        assert found["sparse"], "other sparse gradients than without the hook"
        assert found["no group"].startswith("TypeError: the state of shoal.torch.comm_hook is a shoal.Group")


@pytest.mark.slow
def test_three_ranks() -> None:
    for rank, found in enumerate(run_ranks(comm_hook_scenarios.three_ranks, 3, servers=1)):
        for dtype in ("torch.float32", "torch.bfloat16"):
            assert found[dtype], f"{dtype}: other gradients than those of shoal.allreduce"
        assert found["group"] == ([] if rank == 1 else [2.0, 1.0])


@pytest.mark.slow
def test_ranks_with_other_numbers_in_the_job_are_refused() -> None:
    for rank, text in enumerate(run_ranks(comm_hook_scenarios.other_numbers, 2)):
        assert text.startswith("ConfigurationError"), text
        assert f"rank {rank} of 2 in the job" in text


@pytest.mark.slow
def test_processes_that_the_program_starts_itself_join_by_the_hook(tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "import shoal.torch\n"
        "def main(rank):\n"
        "    dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=rank, world_size=2)\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        "    model.register_comm_hook(None, shoal.torch.comm_hook)\n"
        "    model(torch.tensor([[float(rank)]])).sum().backward()\n"
        "    assert model.module.weight.grad.item() == 0.5\n"
        "    assert shoal.torch.size() == 2\n"
        "    shoal.torch.shutdown()\n"
        "    shoal.torch.init()\n"
        "    assert shoal.torch.size() == 2\n"
        "    model(torch.tensor([[float(rank)]])).sum().backward()\n"
        "    assert model.module.weight.grad.item() == 1.0\n"
        "    dist.destroy_process_group()\n"
        "if __name__ == '__main__':\n"
        "    torch.multiprocessing.spawn(main, nprocs=2)\n"
    )
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
