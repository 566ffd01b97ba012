"""The named operations of one wrapped module, on tensors of the host or of an accelerator.

Those of an accelerator go through memory of the host (staging.py).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoal.gradients.named_operations import NamedOperations
from shoal.job.groups import Group
from shoal.ops import operations, submissions
from shoal.ops.submissions import AnyHandle
from shoal.torch import accelerators
from shoal.torch.accelerators import Stream
from shoal.torch.narrowing import Narrow
from shoal.torch.staging import Transfers


class TensorOperations(NamedOperations):
    """As ``NamedOperations``."""

    def __init__(self, group: Group, of_copy: bool = False) -> None:
        super().__init__(group, of_copy)
        self.waits_in_stream = group.session.settings.waits_in_stream(by_default=False)
        """Whether streams wait for averages, where they can, and the host goes on."""
        self._transfers = Transfers(self.waits_in_stream)

    def allreduce_narrowed(
        self, narrow_memory: torch.Tensor, label: str, memory: torch.Tensor, op: str, narrow: Narrow
    ) -> AnyHandle:
        """Starts an all-reduce in place of memory of the host, which goes through memory of the same shape and another
        dtype.
        """
        with self._failing_everywhere(label):
            narrow(memory, narrow_memory)

        def widen() -> None:
            memory.copy_(narrow_memory)

        return submissions.submit(
            "allreduce_",
            self.name(label),
            self.group,
            lambda group: operations.allreduce(group, narrow_memory, op, in_place=True).then(widen),
            None,
            None,
        )

    def allreduce_through(
        self, host: torch.Tensor, label: str, memory: torch.Tensor, op: str, narrow: Narrow, made_in: Iterable[Stream]
    ) -> AnyHandle:
        """Starts an all-reduce in place of memory of an accelerator, which goes through pinned memory of the same
        shape, by ``narrow`` if the dtype is another.

        ``made_in``: the streams in which the values are made, beside the current one.
        """
        device = accelerators.of([memory])
        assert device is not None, "memory of the host goes nowhere"
        with self._failing_everywhere(label):
            transfer = self._transfers.begin(device)
            transfer.follow_streams(made_in)
            transfer.bring(host, memory, narrow)
            transfer.returns((memory, host))
        return submissions.submit(
            "allreduce_",
            self.name(label),
            self.group,
            lambda group: operations.allreduce(group, host, op, in_place=True),
            None,
            transfer,
        )

    def broadcast(self, label: str, array: Any, root: int = 0, in_stream: bool | None = None) -> AnyHandle:
        """Starts a broadcast in place, from the group's member ``root``. The array may be a tensor of an
        accelerator.

        ``in_stream``: whether a stream is to wait for it; None: as for gradients.
        """
        device = accelerators.of([array]) if isinstance(array, torch.Tensor) else None
        if device is None:
            return super().broadcast(label, array, root)
        source, here = self.group.ranks[root], self.group.rank == root
        with self._failing_everywhere(label):
            transfer = self._transfers.begin(device, in_stream=in_stream)
            staged = transfer.mirror(array, read=here)
            transfer.returns(*(() if here else ((array, staged),)))
        return submissions.submit(
            "broadcast_",
            self.name(label),
            self.group,
            lambda group: operations.broadcast(group, staged, source, in_place=True),
            None,
            transfer,
        )

    @contextmanager
    def _failing_everywhere(self, label: str) -> Iterator[None]:
        """What raises here has not been submitted: the other ranks hear of it and do not wait for this one."""
        try:
            yield
        except Exception as error:
            self.fail(label, str(error))
            raise
