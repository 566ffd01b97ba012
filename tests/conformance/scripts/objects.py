"""Python objects between ranks: the object collectives.

    torchrun --nproc-per-node 3 objects.py --backend shoal

For what is small and has no fixed shape: settings, metrics, names of files. The objects are pickled, so all ranks must trust each
other. Rank 0 prints what it and, by way of it, the others have received.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class Report:
    rank: int
    words: list[str]
    tensor: torch.Tensor

    def __str__(self) -> str:
        return f"rank {self.rank}: {' '.join(self.words)} {self.tensor.tolist()}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    own = Report(rank, ["so", "much"] * (10 * rank + 1), torch.arange(rank))

    # From every rank to every rank, of whatever size.
    reports: list[Any] = [None] * size
    dist.all_gather_object(reports, own)

    # From one rank to all.
    settings: list[Any] = [{"rate": 0.1, "layers": [64, 64]}, "by rank 1", None] if rank == 1 else [None] * 3
    dist.broadcast_object_list(settings, src=1)

    # From one rank to each its own, and back to one.
    part: list[Any] = [None]
    dist.scatter_object_list(part, [f"part {number}" for number in range(size)] if rank == 0 else None, src=0)
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object((rank, part[0], settings), gathered, dst=0)

    # From one to the next, around.
    message: list[Any] = [None]
    if rank == 0:
        dist.send_object_list([["rank 0 was here"]], dst=1)
        dist.recv_object_list(message, src=size - 1)
    else:
        dist.recv_object_list(message, src=rank - 1)
        dist.send_object_list([[*message[0], f"rank {rank} was here"]], dst=(rank + 1) % size)

    if rank == 0 and gathered is not None:
        print(*reports, sep="\n")
        print(*gathered, sep="\n")
        print(message[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
