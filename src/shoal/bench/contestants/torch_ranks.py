"""torch.distributed: gloo on the CPU, NCCL where every rank has a GPU of its own."""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy

from shoal.bench.contestants.base import ArrayBuffer, Buffer, FloatArray

_TIMEOUT = timedelta(seconds=600)

# The interfaces that gloo uses, by commas; one that is named twice is used twice.
GLOO_INTERFACES = "GLOO_SOCKET_IFNAME"
# "1": ranks connect when they first have something for each other. Read when PyTorch is loaded.
GLOO_LAZY = "TORCH_GLOO_LAZY_INIT"
# Below, an operation in parts costs more than more connections gain.
_PARTED_BYTES = 1024 * 1024


class Gloo:
    """A gloo group over all ranks, which meet in ``store`` (a ``torch.distributed`` store).

    PyTorch makes connections and a thread for each interface that GLOO_SOCKET_IFNAME names, and gives operations to them by
    turns. So a large buffer is summed in as many operations at once as there are interfaces.
    """

    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, rank: int, size: int, store: Any) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        interfaces = list(filter(None, os.environ.get(GLOO_INTERFACES, "").split(",")))
        self._parts = max(1, len(interfaces))
        self.version = f"torch {torch.__version__}"
        if self._parts > 1:
            self.version += f", {GLOO_INTERFACES}={','.join(interfaces)}"
        if GLOO_LAZY in os.environ:
            self.version += f", {GLOO_LAZY}={os.environ[GLOO_LAZY]}"
        self.rank, self.size = rank, size
        _begin(rank, size, store)
        self._group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self.barrier()  # makes the connections

    def buffer(self, content: FloatArray) -> Buffer:
        tensor = self._torch.from_numpy(content)
        if self._parts == 1 or content.nbytes < _PARTED_BYTES:
            return ArrayBuffer(content, lambda: self._dist.all_reduce(tensor, group=self._group))
        parts = tensor.chunk(self._parts)
        return ArrayBuffer(content, lambda: self._all_at_once(parts))

    def _all_at_once(self, parts: Sequence[Any]) -> None:
        works = [self._dist.all_reduce(part, group=self._group, async_op=True) for part in parts]
        for work in works:
            work.wait()

    def barrier(self) -> None:
        self._dist.barrier(group=self._group)

    def close(self) -> None:
        _end()


class Nccl:
    """An NCCL group over all ranks, on the GPU ``local_rank`` of each one's machine."""

    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, rank: int, size: int, local_rank: int, store: Any) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        _begin(rank, size, store)
        torch.cuda.set_device(local_rank)
        version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        self.version = f"NCCL {'.'.join(map(str, version))}, torch {torch.__version__}"
        self.rank, self.size = rank, size
        self._group: Any = dist.new_group(backend="nccl", timeout=_TIMEOUT)
        self._flag = torch.zeros(1, device="cuda")
        self.barrier()

    def buffer(self, content: FloatArray) -> Buffer:
        return _CudaBuffer(self._torch, self._dist, self._group, content)

    def barrier(self) -> None:
        self._dist.all_reduce(self._flag, group=self._group)
        self._torch.cuda.synchronize()

    def close(self) -> None:
        _end()


class _CudaBuffer:
    def __init__(self, torch: Any, dist: Any, group: Any, content: FloatArray) -> None:
        self._torch, self._dist, self._group = torch, dist, group
        self._tensor = torch.from_numpy(content).cuda()

    def allreduce(self) -> None:
        self._dist.all_reduce(self._tensor, group=self._group)
        self._torch.cuda.synchronize()

    def fetch(self) -> FloatArray:
        array: FloatArray = numpy.asarray(self._tensor.cpu().numpy(), dtype=numpy.float32)
        return array


def _begin(rank: int, size: int, store: Any) -> None:
    """The process group that the contestants' own groups are made from; whoever comes first makes it."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)


def _end() -> None:
    """Ends it, with all its groups, if nobody has."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def usable_gpus() -> int:
    """GPUs that this process sees and NCCL could use; 0 without PyTorch or without its CUDA build."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return 0
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return 0
    return torch.cuda.device_count()
