"""A compiled model: torch.compile around DistributedDataParallel.

    torchrun --nproc-per-node 2 compiled.py --backend shoal

The compiler cuts the graph where DistributedDataParallel's buckets end, so that averaging still overlaps with the backward
pass. Prints the losses of a compiled model and of the same model as it is.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def train(compiled: bool) -> list[float]:
    """The mean of the ranks' losses at each step."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.GELU())]
    plain = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    model = torch.compile(plain) if compiled else plain
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(32, 512)
        loss = nn.functional.mse_loss(model(inputs), inputs.roll(1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    for title, losses in (("compiled", train(compiled=True)), ("as it is", train(compiled=False))):
        if dist.get_rank() == 0:
            for step, loss in enumerate(losses):
                print(f"{title}, step {step}: loss {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
