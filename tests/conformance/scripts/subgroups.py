"""Groups of some ranks: new_group, DeviceMesh, and a model that is divided in two ways at once.

    torchrun --nproc-per-node 4 subgroups.py --backend shoal

Four ranks as a square of 2 by 2: each row holds a whole model, whose matrices are divided between its two ranks (tensor
parallelism); the two rows work on different data and average their gradients (data parallelism). Prints what groups of different
members sum up to, and the losses, which do not depend on how the model is divided.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 5


def sums(group: dist.ProcessGroup | None = None) -> list[float]:
    """What every rank finds when the members of its group add up their ranks."""
    own = torch.tensor([float(dist.get_rank())])
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.all_reduce(own, group=group)
    everyone = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    return [float(each) for each in everyone]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()

    # Every rank makes every group, also those that it is not in.
    outer = dist.new_group([0, size - 1])
    inner = dist.new_group(range(1, size - 1))
    pairs, _ = dist.new_subgroups(2)
    found = {"all": sums(), "outer": sums(outer), "inner": sums(inner), "pairs": sums(pairs)}

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    found |= {"columns": sums(mesh.get_group("data")), "rows": sums(mesh.get_group("tensor"))}
    numbers = distribute_tensor(torch.arange(8.0), mesh["tensor"], [Shard(0)])
    if rank == 0:
        for name, values in found.items():
            print(f"{name}: {values}")
        print(f"this rank's part of 8 numbers: {numbers.to_local().tolist()}")
    total = numbers.sum().full_tensor().item()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + mesh.get_local_rank("data"))
    for step in range(STEPS):
        inputs = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    if rank == 0:
        print(f"their sum: {total}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
