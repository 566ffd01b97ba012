"""The ranks of joining.py: ``python joining_ranks.py BACKEND RANKS``, for each line of standard input one job on loopback.

What all need is imported first, and ranks are forked from that, so that what is timed is joining and not Python. Answers each line with
one of JSON: by rank, when it began, when it had joined, when its first sum was there (``time.monotonic``), and how many TCP
connections it had then.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import shoal.torch.c10d.process_group
from shoal.processes import free_master_port

_ESTABLISHED = "01"
# 1 KiB of float32.
_ELEMENTS = 256

assert shoal.torch.c10d.process_group  # imported for all ranks


def main(backend: str, ranks: int) -> None:
    torch.set_num_threads(1)
    for _ in sys.stdin:
        print(json.dumps(_job(backend, ranks)), flush=True)


def _job(backend: str, ranks: int) -> list[dict[str, float]]:
    port = free_master_port()
    told_read, told_write = os.pipe()
    found_read, found_write = os.pipe()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.close(told_write)
            os.close(found_read)
            _rank(backend, rank, ranks, port, told_read, found_write)
        pids.append(pid)
    os.close(found_write)
    with open(found_read) as lines:  # noqa: PTH123
        # All ranks stay until all have said what they found: a rank that leaves takes connections with it.
        found = [json.loads(lines.readline()) for _ in range(ranks)]
    os.close(told_write)
    os.close(told_read)
    for pid in pids:
        os.waitpid(pid, 0)
    return sorted(found, key=lambda one: one["rank"])


def _rank(backend: str, rank: int, ranks: int, port: int, told: int, found: int) -> None:
    """Never returns: what the parent has open is the parent's."""
    try:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            # Each a node: all that they say goes by TCP.
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        began = time.monotonic()
        dist.init_process_group(backend)
        joined = time.monotonic()
        dist.all_reduce(torch.ones(_ELEMENTS))
        summed = time.monotonic()
        one = {"rank": rank, "began": began, "joined": joined, "summed": summed, "connections": connections()}
        os.write(found, json.dumps(one).encode() + b"\n")  # shorter than what a pipe writes at once
        os.read(told, 1)
    except BaseException as error:
        print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def connections() -> int:
    """TCP connections that this process has."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(descriptor.readlink()))
        except FileNotFoundError:  # the one that lists them
            continue
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path("/proc/self/net", name).read_text().splitlines()[1:]
    ]
    return sum(fields[3] == _ESTABLISHED and f"socket:[{fields[9]}]" in own for fields in lines)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
