"""A job that begins again after one of its ranks was killed: torchrun --max-restarts.

    torchrun --standalone --nproc-per-node 3 --max-restarts 1 elastic.py --backend shoal --folder /tmp/elastic --kill 7

torchrun starts all ranks anew when one fails; they go on from the last checkpoint in the folder. ``--kill 7`` makes the last rank
kill itself at step 7, the first time. Prints which step it resumed from, the losses from there, and the parameters' norm, which is
that of a job that nobody disturbed.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVED_EVERY = 12, 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the checkpoint is, on a disk that all ranks see"
    )
    parser.add_argument("--kill", type=int, default=-1, help="the step at which the last rank is killed, once")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, killed = options.folder / "checkpoint.pt", options.folder / "killed"

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        if rank == 0:
            print(f"resumed from step {step}")

    while step < STEPS:
        inputs = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        if step == options.kill and rank == size - 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
        step += 1
        if step % SAVED_EVERY == 0:
            if rank == 0:
                # Another name first: who is killed while writing leaves the older checkpoint as it was.
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
            dist.barrier()

    norm = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).norm().item()
    if rank == 0:
        print(f"norm of the parameters {norm:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
