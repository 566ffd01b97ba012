"""Saving and resuming a training with DistributedDataParallel.

    torchrun --nproc-per-node 2 checkpoint.py --backend shoal

All ranks have the same parameters, so one file, written by rank 0, is enough; the barrier keeps the others from reading it
before it is whole. Prints the losses of a training that goes on and of one that resumes from the file: they are the same.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVED_AFTER, STEPS = 5, 10


class Training:
    """A model, its optimizer, and batches that depend on the step alone."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step = 0

    def run(self, until: int) -> list[float]:
        """The loss on this rank at each step."""
        losses = []
        while self.step < until:
            generator = torch.Generator().manual_seed(1000 * self.step + dist.get_rank())
            inputs = torch.randn(16, 20, generator=generator)
            loss = nn.functional.mse_loss(self.model(inputs), inputs.sum(1, keepdim=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            losses.append(loss.item())
        return losses

    def save(self, path: Path) -> None:
        if dist.get_rank() == 0:
            torch.save(
                {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}, path
            )
        dist.barrier()

    def load(self, path: Path) -> None:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank = dist.get_rank()

    # A folder that all ranks see: rank 0 makes it and tells the others.
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    path = Path(str(folder[0])) / "checkpoint.pt"

    first = Training(seed=0)
    first.run(SAVED_AFTER)
    first.save(path)
    went_on = first.run(STEPS)

    second = Training(seed=1)
    second.load(path)
    resumed = second.run(STEPS)

    same = [None] * dist.get_world_size()
    dist.all_gather_object(same, went_on == resumed)
    if rank == 0:
        for number, loss in enumerate(resumed, SAVED_AFTER):
            print(f"step {number}: loss {loss:.6f}")
        print(f"resumed as it went on, on each rank: {same}")
        path.unlink()
        path.parent.rmdir()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
