"""DeepSpeed: the backend is a word of init_distributed.

    torchrun --nproc-per-node 2 deepspeed_init.py --backend shoal

Needs the package deepspeed. Prints the loss of each step, as all ranks have it together.
"""

import argparse
import logging

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

STEPS = 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.init_distributed(dist_backend=options.backend)
    assert dist.get_backend() == options.backend
    for stage in (0, 1, 2, 3):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
        engine, *_ = deepspeed.initialize(
            model=plain,
            model_parameters=plain.parameters(),
            config={
                "train_micro_batch_size_per_gpu": 8,
                "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
                "zero_optimization": {"stage": stage},
                "zero_force_ds_cpu_optimizer": False,
            },
        )
        generator = torch.Generator().manual_seed(dist.get_rank())
        for step in range(STEPS):
            inputs = torch.randn(8, 16, generator=generator)
            loss = nn.functional.mse_loss(engine(inputs), inputs.square().mean(1, keepdim=True))
            engine.backward(loss)
            engine.step()
            mean = loss.detach().clone()
            deepspeed.comm.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"ZeRO stage {stage}, step {step}: loss {mean.item() / dist.get_world_size():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
