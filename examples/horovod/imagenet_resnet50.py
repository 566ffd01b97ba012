"""A script of Horovod's kind: ResNet-50 as it is trained on ImageNet, here on synthetic images.

    shoal run -n 4 --nodes 4 --servers 2 examples/horovod/imagenet_resnet50.py --epochs 2 --images 256

The learning rate grows with the number of ranks and is warmed up (Goyal et al., 2017); gradients of several batches may be
added before they are averaged; rank 0 writes checkpoints, and all ranks go on from the last. Needs the package torch.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from resnet import SIZES
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shoal.horovod.torch as hvd


class Metric:
    """The mean of a value over all batches of all ranks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sum = torch.tensor(0.0)
        self.count = 0

    def update(self, value: torch.Tensor) -> None:
        self.sum += hvd.allreduce(value.detach(), name=self.name)
        self.count += 1

    @property
    def mean(self) -> float:
        return (self.sum / self.count).item()


def synthetic(images: int, side: int, classes: int) -> TensorDataset:
    """Each class has a colour of its own, with noise: something can be learnt."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes
    colours = torch.randn(classes, 3, 1, 1, generator=generator)
    return TensorDataset(colours[labels] + torch.randn(images, 3, side, side, generator=generator), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SIZES, default="resnet50")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--side", type=int, default=224, help="pixels of an image's side")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--checkpoints", type=Path, help="folder of the checkpoints; without it none are written")
    parser.add_argument("--batch-size", type=int, default=8, help="of a rank and a backward pass")
    parser.add_argument("--batches-per-allreduce", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--base-lr", type=float, default=0.0125)
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)

    resume_from = 0
    if args.checkpoints and hvd.rank() == 0:
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        resume_from = sum(1 for _ in args.checkpoints.glob("*.pt"))
    resume_from = hvd.broadcast(torch.tensor(resume_from), root_rank=0, name="resume_from").item()

    data = synthetic(args.images, args.side, args.classes)
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    # What is too few for a step at the end is left out: every backward pass of a step has to come.
    loader = DataLoader(data, args.batch_size * args.batches_per_allreduce, sampler=sampler, drop_last=True)

    model: nn.Module = SIZES[args.model]()
    scale = args.batches_per_allreduce * hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr * scale, momentum=0.9, weight_decay=args.wd)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
    )
    if resume_from > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoints / f"{resume_from}.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(resume_from, args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        loss, accuracy = Metric("loss"), Metric("accuracy")
        for step, (images, labels) in enumerate(loader):
            progress = epoch + step / len(loader)
            for group in optimizer.param_groups:
                group["lr"] = args.base_lr * warmed_up(progress, args.warmup_epochs, scale)
            optimizer.zero_grad()
            for begin in range(0, len(images), args.batch_size):
                part, target = images[begin : begin + args.batch_size], labels[begin : begin + args.batch_size]
                output = model(part)
                batch_loss = F.cross_entropy(output, target)
                accuracy.update((output.argmax(1) == target).float().mean())
                loss.update(batch_loss)
                (batch_loss / args.batches_per_allreduce).backward()
            optimizer.step()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.mean:.4f}, accuracy {accuracy.mean:.2%}", flush=True)
            if args.checkpoints:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                unfinished = args.checkpoints / "unfinished"
                torch.save(state, unfinished)
                unfinished.replace(args.checkpoints / f"{epoch + 1}.pt")


def warmed_up(epoch: float, warmup_epochs: float, scale: int) -> float:
    """The factor of the learning rate: from 1 to ``scale`` in the first epochs, and then by tenths."""
    if epoch < warmup_epochs:
        return 1 + epoch * (scale - 1) / warmup_epochs
    return scale * 0.1 ** sum(epoch >= later for later in (30, 60, 80))


if __name__ == "__main__":
    main()
