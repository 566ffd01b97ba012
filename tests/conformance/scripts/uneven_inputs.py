"""Ranks that have different numbers of batches: Join.

    torchrun --nproc-per-node 3 uneven_inputs.py --backend shoal

A rank that runs out of data would leave the others waiting in the backward pass. Inside Join it answers with zeros until they
are done too. First for DistributedDataParallel alone, by its own method; then together with ZeroRedundancyOptimizer, whose
state is divided among the ranks and which communicates in each step as well. Prints what the models have become.
"""

import argparse
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def make_model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 1)))


def batches() -> Iterator[Tensor]:
    """Rank 0 has 4, rank 1 has 7, and so on."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4 + 3 * rank):
        yield torch.randn(8, 10, generator=generator)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True)).backward()
    optimizer.step()


def report(title: str, model: nn.Module, steps: int) -> None:
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    found: list[tuple[int, float]] = [(0, 0.0)] * dist.get_world_size()
    dist.all_gather_object(found, (steps, parameters.norm().item()))
    if dist.get_rank() == 0:
        for rank, (count, norm) in enumerate(found):
            print(f"{title}: rank {rank} has made {count} steps, norm of its parameters {norm:.6f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)

    model, steps = make_model(), 0
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for inputs in batches():
            step(model, optimizer, inputs)
            steps += 1
    report("model.join", model, steps)

    model, steps = make_model(), 0
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    with Join([model, optimizer]):
        for inputs in batches():
            step(model, optimizer, inputs)
            steps += 1
    report("Join", model, steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
