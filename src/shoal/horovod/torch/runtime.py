"""Joining the job from PyTorch: as ``shoal.torch.init`` does, so that torchrun's store, or a process group's, is used."""

from collections.abc import Iterable

import shoal.torch
from shoal.horovod.common import basics
from shoal.horovod.common.process_sets import ProcessSet


def init(comm: Iterable[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """``shoal.horovod.init`` for the ranks of PyTorch's default process group, or without one for those of the launcher."""
    basics.join(shoal.torch.init, comm, process_sets)
