"""The plainest data-parallel training: DistributedDataParallel and DistributedSampler.

    torchrun --nproc-per-node 2 ddp.py --backend shoal

Every rank has a copy of the model and its own part of the data; DistributedDataParallel averages the gradients while the
backward pass runs, so the copies stay the same. Prints the mean loss of each epoch and the accuracy on images not trained on.
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HELD_BACK = 360


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Handwritten digits, to train with and to test with."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    return TensorDataset(images[HELD_BACK:], labels[HELD_BACK:]), TensorDataset(images[:HELD_BACK], labels[:HELD_BACK])


def mean_of_ranks(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank = dist.get_rank()

    train, test = datasets()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(train)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    torch.manual_seed(rank)  # all ranks begin with rank 0's parameters all the same
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)  # another order, and another division among the ranks, in each
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = mean_of_ranks(sum(losses) / len(losses))
        if rank == 0:
            print(f"epoch {epoch}: loss {mean:.6f}")

    with torch.no_grad():
        images, labels = test.tensors
        right = (model.module(images).argmax(1) == labels).float().mean().item()
    if rank == 0:
        print(f"accuracy {100 * right:.1f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
