"""A script of Horovod's kind: how many images a second ResNet-50 trains on, with images that are random numbers.

    shoal run -n 4 --nodes 4 --servers 2 examples/horovod/synthetic_benchmark.py

Needs the package torch.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from resnet import SIZES

import shoal.horovod.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SIZES, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=4, help="of a rank")
    parser.add_argument("--side", type=int, default=224, help="pixels of an image's side")
    parser.add_argument("--num-warmup-batches", type=int, default=2)
    parser.add_argument("--num-batches-per-iter", type=int, default=3)
    parser.add_argument("--num-iters", type=int, default=3)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    parser.add_argument("--use-adasum", action="store_true", help="Adasum combines the ranks' steps")
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)

    model = SIZES[args.model]()
    lr = 0.01 if args.use_adasum else 0.01 * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    data = torch.randn(args.batch_size, 3, args.side, args.side)
    target = torch.randint(10, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()

    def log(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    log(f"{args.model}, {hvd.size()} ranks, {args.batch_size} images a rank")
    for _ in range(args.num_warmup_batches):
        step()
    rates = []
    for _ in range(args.num_iters):
        begun = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            step()
        rates.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - begun))
    mean, spread = statistics.mean(rates), statistics.pstdev(rates)
    log(f"images a second on a rank: {mean:.1f} +- {1.96 * spread:.1f}")
    log(f"images a second on {hvd.size()} ranks: {mean * hvd.size():.1f} +- {1.96 * spread * hvd.size():.1f}")


if __name__ == "__main__":
    main()
