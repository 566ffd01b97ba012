"""A model whose parameters, gradients and optimizer state are divided among the ranks: FSDP2 on the CPU.

    torchrun --nproc-per-node 2 fsdp.py --backend shoal

``fully_shard`` makes each parameter a DTensor of which a rank keeps its part; a block's parameters are gathered before it is
needed, its gradients are reduced and scattered after. Prints the losses, and in the end rank 0's whole state dict in short.
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

STEPS = 6


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = inputs + self.layers(self.norm(inputs))
        return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank = dist.get_rank()

    torch.manual_seed(0)  # fully_shard takes the parameters as they are: they must be the same everywhere
    model = nn.Sequential(nn.Linear(16, 30), Block(30), Block(30), nn.Linear(30, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model[1:3]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    torch.manual_seed(1 + rank)
    for step in range(STEPS):
        inputs = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(inputs), inputs.square().mean(1, keepdim=True))
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)  # of the whole gradient, wherever its parts are
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.6f}")

    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        for name, tensor in whole.items():
            print(f"{name}: {list(tensor.shape)}, norm {tensor.norm().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
