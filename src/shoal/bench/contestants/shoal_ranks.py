"""Shoal itself: a rank that sums in place, with nothing but the public operations; and as the backend of torch.distributed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import shoal
from shoal import _native
from shoal.bench.contestants.base import ArrayBuffer, Buffer, FloatArray
from shoal.bench.sizes import show_bytes, show_rate, show_seconds
from shoal.gradients import layout
from shoal.job import runtime


class ShoalRanks:
    """Joins the job that the environment describes.

    ``limits``: overrides of the job's limits, by name. ``window``, ``shared``: see ``shoal.bench.Variant``.

    Raises ShoalError, when a buffer is made, if arrays are to be shared and cannot be.
    """

    def __init__(
        self, limits: Mapping[str, int], store: Any = None, window: int | None = None, shared: bool = False
    ) -> None:
        runtime.init(store, _limits=limits)
        self.version = f"{_native.__version__}, {_found()}"
        self.rank = shoal.rank()
        self.size = shoal.size()
        self.limits: Mapping[str, int] = asdict(runtime.current().limits)
        self._window = window
        self._shared = shared

    def buffer(self, content: FloatArray) -> Buffer:
        if self._shared:
            content = _in_shared_memory(content)
        if self._window is None:
            return ArrayBuffer(content, lambda: shoal.allreduce_(content, op="sum"))
        cut = layout.balanced_buffers(content.nbytes, self._window)
        windows = [content[extent.begin // 4 : extent.end // 4] for extent in cut]
        return ArrayBuffer(content, lambda: _sum_all(windows))

    def barrier(self) -> None:
        shoal.barrier()

    def close(self) -> None:
        shoal.shutdown()


class ShoalRanksOfTorch:
    """The same job, used by torch.distributed. Its ranks meet once more, in ``store``, as PyTorch wants it."""

    def __init__(self, limits: Mapping[str, int], rank: int, size: int, store: Any) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self._job = ShoalRanks(limits)
        dist.init_process_group("shoal", store=store, rank=rank, world_size=size)
        self.version = f"{self._job.version}, torch {torch.__version__}"
        self.rank, self.size, self.limits = self._job.rank, self._job.size, self._job.limits

    def buffer(self, content: FloatArray) -> Buffer:
        tensor = self._torch.from_numpy(content)
        return ArrayBuffer(content, lambda: self._dist.all_reduce(tensor))

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()
        self._job.close()


def _in_shared_memory(content: FloatArray) -> FloatArray:
    memory = runtime.allocate(content.nbytes)
    if memory is None:
        raise shoal.ShoalError(f"rank {shoal.rank()} shares no memory for arrays with other ranks")
    array: FloatArray = memory.view(content.dtype)
    array[:] = content
    return array


def _sum_all(windows: list[FloatArray]) -> None:
    handles = [shoal.allreduce_async_(window, op="sum") for window in windows]
    for handle in handles:
        handle.wait()


def _found() -> str:
    """The sizes that hold in this job, and what they were made from, as far as it was measured."""
    session = runtime.current()
    sizes = f"segment {show_bytes(session.limits.segment)}, credit {show_bytes(session.limits.credit)}"
    if session.network is None:
        return sizes
    return f"{sizes}; found links of {show_rate(session.network.rate)}, round trip {show_seconds(session.network.round_trip)}"
