"""Ray Train: the backend is a word of its TorchConfig.

    python ray_train.py --backend shoal --workers 2

Ray starts the workers itself. Needs the package ray[train]. Prints the loss of each epoch, as all workers have it together.
"""

import argparse
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

# Quiet, and nothing of it leaves this machine.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 16, generator=generator)
    return TensorDataset(inputs, inputs.square().sum(1, keepdim=True) / 16)


def train(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    loader = prepare_data_loader(DataLoader(dataset(), batch_size=16, shuffle=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    lines = [f"{dist.get_world_size()} workers of {settings['backend']}: {dist.get_backend() == settings['backend']}"]
    for epoch in range(EPOCHS):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        losses = []
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        lines.append(f"epoch {epoch}: loss {mean.item() / dist.get_world_size():.6f}")
        ray.train.report({"loss": mean.item()})
    if dist.get_rank() == 0:
        Path(settings["file"]).write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    ray.init(num_cpus=options.workers + 1, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.txt"
        TorchTrainer(
            train,
            train_loop_config={"backend": options.backend, "file": str(file)},
            torch_config=TorchConfig(backend=options.backend),
            scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
            run_config=ray.train.RunConfig(storage_path=folder),
        ).fit()
        print(file.read_text().replace(options.backend, "the backend"))
    ray.shutdown()


if __name__ == "__main__":
    main()
