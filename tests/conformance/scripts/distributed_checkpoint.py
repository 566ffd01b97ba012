"""Checkpoints that all ranks write together: torch.distributed.checkpoint.

    torchrun --nproc-per-node 4 distributed_checkpoint.py --backend shoal

Each rank writes the parts of the model that it has. What was saved by four ranks that shard the model is then loaded by two
pairs that each shard it by two, which is another division: every rank reads what it needs from whichever file has it. At last a checkpoint is saved in
the background, through a process group of its own, while training goes on. Prints whether what was loaded is what was saved.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Training:
    """A sharded model and its optimizer. ``mesh``: over which ranks it is sharded; over its first dimension it is replicated
    if it has two."""

    def __init__(self, mesh: DeviceMesh, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = fully_shard(nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 5)), mesh=mesh)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self) -> None:
        self.model(torch.ones(4, 12)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, folder: Path) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=str(folder))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def whole(self) -> list[torch.Tensor]:
        """The parameters and the moments of the optimizer, undivided."""
        moments = [
            self.optimizer.state[parameter][key]
            for parameter in self.model.parameters()
            for key in ("exp_avg", "exp_avg_sq")
        ]
        return [
            (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
            for tensor in [*self.model.parameters(), *moments]
        ]


def equal(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    path = Path(str(folder[0]))

    by_all = init_device_mesh("cpu", (size,))
    by_two = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    first = Training(by_all, seed=0)
    for _ in range(3):
        first.step()
    saved = first.whole()
    dcp.save(first.state(), checkpoint_id=str(path / "together"))
    if rank == 0:
        print("files of the ranks:", sorted(file.name for file in (path / "together").iterdir()))

    second = Training(by_two, seed=1)
    second.load(path / "together")
    found = [equal(saved, second.whole())]

    saving = dcp.async_save(
        first.state(), checkpoint_id=str(path / "meanwhile"), process_group=dist.new_group(backend=options.backend)
    )
    for _ in range(3):
        first.step()
    saving.result()
    third = Training(by_all, seed=2)
    third.load(path / "meanwhile")
    found.append(equal(saved, third.whole()) and not equal(saved, first.whole()))

    everywhere: list[Any] = [None] * size
    dist.all_gather_object(everywhere, found)
    if rank == 0:
        print(f"sharded by 2, what 4 had saved; what was saved in the background: {everywhere}")
        print("norms after going on:", *(f"{tensor.norm().item():.5f}" for tensor in first.whole()))
        shutil.rmtree(path)
    else:
        first.whole()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
