"""Lightning Fabric: the backend is a word of its strategy.

    torchrun --nproc-per-node 2 fabric.py --backend shoal

Fabric takes over the model, the optimizer and the data loaders, whatever runs them; of torch.distributed, a program sees what it
asks for. Needs the package lightning-fabric. Prints the loss of each epoch, as all ranks have it together.
"""

import argparse
import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 16, generator=generator)
    return TensorDataset(inputs, inputs.square().sum(1, keepdim=True) / 16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    strategy = DDPStrategy(process_group_backend=options.backend)
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy=strategy)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)

    plain = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    model, optimizer = fabric.setup(plain, torch.optim.Adam(plain.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(DataLoader(dataset(), batch_size=16, shuffle=True))

    for epoch in range(EPOCHS):
        losses = []
        for number, (inputs, targets) in enumerate(loader):
            # Gradients of two batches add up before they are averaged.
            accumulating = number % 2 == 0
            with fabric.no_backward_sync(model, enabled=accumulating):
                loss = nn.functional.mse_loss(model(inputs), targets)
                fabric.backward(loss)
            if not accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        mean = fabric.all_reduce(torch.stack(losses).mean())
        fabric.print(f"epoch {epoch}: loss {mean.item():.6f}")

    settings = fabric.broadcast({"from": fabric.global_rank})
    ranks = fabric.all_gather(torch.tensor([fabric.global_rank]))
    fabric.print(f"ranks {ranks.flatten().tolist()}, settings {settings}")
    fabric.barrier()


if __name__ == "__main__":
    main()
