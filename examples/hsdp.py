"""A model whose parameters are divided among the ranks of a node, and replicated between nodes: HSDP, by PyTorch's FSDP2.

    torchrun --nproc-per-node 4 examples/hsdp.py --shard 2

Inside a node ("shard") NCCL gathers parameters and scatters gradients, or gloo on the CPU. Between nodes ("replicate")
Shoal averages what each rank has: 1 / SHARD of the gradients. To show that it is right, every rank then trains a second
model alone on the batches of all ranks, and rank 0 compares the parameters.
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, BATCH, WIDTH = 20, 16, 64


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = inputs + self.layers(self.norm(inputs))
        return result


def make_model() -> nn.Sequential:
    torch.manual_seed(0)  # the same on every rank: fully_shard takes parameters as they are
    return nn.Sequential(nn.Linear(8, WIDTH), Block(WIDTH), Block(WIDTH), nn.Linear(WIDTH, 1))


def batch(step: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs.to(device), inputs.square().mean(1, keepdim=True).to(device)


def train(model: nn.Module, batches: list[list[tuple[Tensor, Tensor]]]) -> None:
    """``batches``: by step, those whose mean gradient is taken."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for of_step in batches:
        for inputs, targets in of_step:
            (nn.functional.mse_loss(model(inputs), targets) / len(of_step)).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--shard", type=int, default=2, help="ranks among which parameters are divided: those of a node"
    )
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:shoal" if on_gpu else "shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)

    mesh = init_device_mesh(
        device.type,
        (size // options.shard, options.shard),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": "shoal", "shard": "nccl" if on_gpu else "gloo"},
    )
    model = make_model().to(device)
    for block in model[1:3]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, [[batch(step, rank, device)] for step in range(STEPS)])
    together = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))

    alone = make_model().to(device)
    train(alone, [[batch(step, other, device) for other in range(size)] for step in range(STEPS)])
    if rank == 0:
        largest = max(float((together[name] - value).abs().max()) for name, value in alone.state_dict().items())
        print(f"{size} ranks, parameters divided among {options.shard}: at most {largest:.1e} from one process")
        assert largest < 1e-3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
