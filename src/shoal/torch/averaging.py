"""The operations of a backward pass, on arenas of the host and of accelerators."""

from collections.abc import Iterable

from shoal.gradients.agreement import Statement
from shoal.gradients.averaging import Averaging
from shoal.ops.submissions import AnyHandle
from shoal.torch.accelerators import Accelerator, Stream
from shoal.torch.arena import Buffer, GradientArenas
from shoal.torch.tensor_operations import TensorOperations

TensorAveraging = Averaging[Buffer]


def averaging_of(
    operations: TensorOperations, arenas: GradientArenas, statement: Statement, expected: Iterable[int] | None
) -> TensorAveraging:
    """The operations of a pass that begins. ``expected``: as for ``Averaging``."""
    kind = _OnDevices if arenas.has_devices else _OnHost
    return kind(operations, arenas, statement, expected)


class _OnHost(TensorAveraging):
    def __init__(
        self, operations: TensorOperations, arenas: GradientArenas, statement: Statement, expected: Iterable[int] | None
    ) -> None:
        super().__init__(operations, arenas.buffers, arenas.touched, arenas.frozen, statement, expected)


class _OnDevices(TensorAveraging):
    """A gradient that is ready will be in its place in the order of the current stream of its device."""

    def __init__(
        self, operations: TensorOperations, arenas: GradientArenas, statement: Statement, expected: Iterable[int] | None
    ) -> None:
        super().__init__(operations, arenas.buffers, arenas.touched, arenas.frozen, statement, expected)
        self._through = operations
        self._arenas = arenas
        # Where the gradients that are ready were made: autograd has a stream for each part of the graph that the
        # program gave one.
        self._streams: set[tuple[Accelerator, Stream]] = set()

    def ready(self, gradient: int) -> None:
        device = self._arenas.device(gradient)
        if device is not None and not self.progress.is_ready(gradient):
            self._streams.add((device, device.current))
        super().ready(gradient)

    def submit(self, buffer: Buffer) -> AnyHandle:
        if buffer.host is None:
            return super().submit(buffer)
        device = self._arenas.device(buffer.gradients[0])
        assert device is not None, "what has a mirror is on a device"
        made_in = [stream for its_device, stream in self._streams if its_device is device and stream != device.current]
        return self._through.allreduce_through(buffer.host, buffer.label, buffer.memory, "mean", made_in)
