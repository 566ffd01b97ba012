"""A small network that two ranks train on the devices named, beside one process that trains it alone: the same parameters?

    shoal run -n 2 benchmarks/gpu/training.py cuda cuda
    shoal run -n 2 benchmarks/gpu/training.py cuda cpu --wrapper torch

The rank's device is that of its number. In float64, so that nothing but the last bits may differ. The exit code is 1 if more does.
"""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import shoal
import shoal.torch

STEPS = 30
BATCH = 32
ALLOWED = 1e-9


def make_model(device: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(8 * 64, 256), nn.GELU()]
    return nn.Sequential(*layers, *[nn.Linear(256, 256) for _ in range(4)], nn.Linear(256, 10)).double().to(device)


def train(model: nn.Module, device: str, rank: int, size: int) -> Tensor:
    """The parameters, after training on this rank's part of every batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        images = torch.randn(BATCH, 1, 8, 8, dtype=torch.float64, generator=data).chunk(size)[rank]
        labels = torch.randint(10, (BATCH,), generator=data).chunk(size)[rank]
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="+")
    parser.add_argument("--wrapper", choices=["shoal", "torch"], default="shoal")
    given = parser.parse_args()
    shoal.torch.init()
    rank, size = shoal.rank(), shoal.size()
    if len(given.devices) != size:
        parser.error(f"{size} ranks need as many devices")
    device = given.devices[rank]
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    model = make_model(device)
    if given.wrapper == "shoal":
        wrapped: nn.Module = shoal.torch.DistributedDataParallel(model)
    else:
        dist.init_process_group("shoal")
        wrapped = nn.parallel.DistributedDataParallel(model)
    begun = time.monotonic()
    found = train(wrapped, device, rank, size)
    seconds = time.monotonic() - begun
    alone = train(make_model(device), device, 0, 1)
    difference = float((found - alone).abs().max())
    right = bool(found.isfinite().all()) and difference <= ALLOWED
    if given.wrapper == "torch":
        dist.destroy_process_group()
    shoal.shutdown()
    print(
        f"{given.wrapper}'s wrapper, {device} of {' and '.join(given.devices)}: {STEPS} steps in {seconds:.2f} s, at most "
        f"{difference:.1e} from one process: {'right' if right else 'WRONG'}"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
