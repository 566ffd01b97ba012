"""Horovod, where it is installed and its launcher (or an MPI) has started the ranks."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shoal.bench.contestants.base import ArrayBuffer, Buffer, FloatArray


class Horovod:
    """All ranks of the Horovod job. Raises ImportError if Horovod is not there."""

    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self) -> None:
        import torch

        self._hvd: Any = importlib.import_module("horovod.torch")
        self._hvd.init()
        self._torch = torch
        version = importlib.import_module("horovod").__version__
        self.version = f"horovod {version}, torch {torch.__version__}"
        self.rank: int = self._hvd.rank()
        self.size: int = self._hvd.size()
        self._count = 0
        self.barrier()

    def buffer(self, content: FloatArray) -> Buffer:
        tensor = self._torch.from_numpy(content)
        self._count += 1
        name = f"bench.{self._count}"
        return ArrayBuffer(content, lambda: self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=name))

    def barrier(self) -> None:
        self._hvd.barrier()

    def close(self) -> None:
        self._hvd.shutdown()
