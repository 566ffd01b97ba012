"""Accelerate: the process group is made before the Accelerator, in one line.

    torchrun --nproc-per-node 2 accelerated.py --backend shoal
    accelerate launch --multi_gpu --num_processes 2 accelerated.py --backend shoal

Accelerate's launcher starts several processes of a machine only with --multi_gpu, which needs no GPU; with --cpu it starts one.
On GPUs ``InitProcessGroupKwargs(backend="shoal")`` is enough. On CPUs Accelerate refuses every name but gloo and mpi, and takes a
process group that is there already as it is. Needs the package accelerate. Prints the loss of each epoch, as all ranks have it
together, and a metric that is gathered.
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, reduce, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(250, 16, generator=generator)
    return TensorDataset(inputs, inputs.square().sum(1, keepdim=True) / 16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    plain = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1))
    model, optimizer, loader = accelerator.prepare(
        plain, torch.optim.Adam(plain.parameters(), lr=0.01), DataLoader(dataset(), batch_size=16, shuffle=True)
    )
    for epoch in range(EPOCHS):
        losses = []
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        mean = reduce(torch.stack(losses).mean(), reduction="mean")
        accelerator.print(f"epoch {epoch}: loss {mean.item():.6f}")

    model.eval()
    with torch.no_grad():
        # 250 samples are not a multiple of what all ranks take at once: the last ones are not counted twice.
        errors = [accelerator.gather_for_metrics((model(x) - y).square()) for x, y in loader]
    accelerator.print(f"mean error of {sum(map(len, errors))} samples: {torch.cat(errors).mean().item():.6f}")
    settings = broadcast_object_list([{"from": accelerator.process_index}])
    accelerator.print(f"ranks {gather_object([accelerator.process_index])}, settings {settings}")
    padded = accelerator.pad_across_processes(torch.ones(accelerator.process_index + 1), dim=0)
    accelerator.print(f"padded to {tuple(padded.shape)}, {accelerator.reduce(padded, reduction='sum').tolist()}")
    accelerator.wait_for_everyone()
    assert dist.get_backend() == options.backend
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
