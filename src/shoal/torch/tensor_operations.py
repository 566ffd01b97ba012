"""The named operations of one wrapped module, on tensors of the host or of an accelerator.

Those of an accelerator go through memory of the host (staging.py).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from shoal.gradients.named_operations import NamedOperations
from shoal.job.groups import Group
from shoal.ops import operations, submissions
from shoal.ops.operations import Plan
from shoal.ops.submissions import AnyHandle
from shoal.torch import accelerators
from shoal.torch.accelerators import Stream
from shoal.torch.narrowing import Narrowing
from shoal.torch.staging import Transfers


class TravellingBuffer(Protocol):
    """``own``: the part of a buffer that this rank averages. ``mirror``: what travels; None for that itself."""

    @property
    def label(self) -> str:
        """Of the operation."""

    @property
    def own(self) -> torch.Tensor:
        """Of one dimension."""

    @property
    def mirror(self) -> torch.Tensor | None:
        """Of the same shape, on the host: for what is on an accelerator, or travels in another dtype."""


class TensorOperations(NamedOperations):
    """As ``NamedOperations``."""

    def __init__(self, group: Group, of_copy: bool = False) -> None:
        super().__init__(group, of_copy)
        self.waits_in_stream = group.session.settings.waits_in_stream(by_default=False)
        """Whether streams wait for averages, where they can, and the host goes on."""
        self._transfers = Transfers(self.waits_in_stream)

    def average(self, buffer: TravellingBuffer, narrowing: Narrowing, made_in: Iterable[Stream] = ()) -> AnyHandle:
        """Starts the mean of this rank's part of a buffer, in place.

        ``made_in``: the streams in which the values are made, beside the current one.
        """
        own, mirror = buffer.own, buffer.mirror
        if mirror is None:
            return self.allreduce(buffer.label, own, "mean")
        device = accelerators.of([own])
        with self._failing_everywhere(buffer.label):
            narrow = narrowing.of_buffer(buffer.label)
            transfer = None if device is None else self._transfers.begin(device)
            if transfer is None:
                narrow(own, mirror)
            else:
                transfer.follow_streams(made_in)
                transfer.bring(mirror, own, narrow)
                transfer.returns((own, mirror))

        def plan(group: Group) -> Plan:
            averaged = operations.allreduce(group, mirror, "mean", in_place=True)
            return averaged if transfer is not None else averaged.then(widen)

        def widen() -> None:
            own.copy_(mirror)

        return submissions.submit("allreduce_", self.name(buffer.label), self.group, plan, None, transfer)

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
