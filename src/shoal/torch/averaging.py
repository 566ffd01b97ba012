"""The operations of a backward pass, on arenas of the host and of accelerators."""

from collections.abc import Iterable

from shoal.gradients.agreement import Statement
from shoal.gradients.averaging import Averaging
from shoal.ops.submissions import AnyHandle
from shoal.torch.accelerators import Accelerator, Stream
from shoal.torch.arena import Buffer, GradientArenas
from shoal.torch.narrowing import Narrowing
from shoal.torch.tensor_operations import TensorOperations

TensorAveraging = Averaging[Buffer]


def averaging_of(
    operations: TensorOperations,
    arenas: GradientArenas,
    narrowing: Narrowing,
    statement: Statement,
    expected: Iterable[int] | None,
) -> TensorAveraging:
    """The operations of a pass that begins. ``expected``: as for ``Averaging``."""
    kind = _OnDevices if arenas.has_devices else _OnHost
    return kind(operations, arenas, narrowing, statement, expected)


class _OnHost(TensorAveraging):
    def __init__(
        self,
        operations: TensorOperations,
        arenas: GradientArenas,
        narrowing: Narrowing,
        statement: Statement,
        expected: Iterable[int] | None,
    ) -> None:
        super().__init__(operations, arenas.buffers, arenas.touched, arenas.frozen, statement, expected)
        self._through = operations
        self._narrowing = narrowing

    def submit(self, buffer: Buffer) -> AnyHandle:
        if buffer.mirror is None:
            return super().submit(buffer)
        narrow = self._narrowing.of_buffer(buffer.label)
        return self._through.allreduce_narrowed(buffer.mirror, buffer.label, buffer.memory, "mean", narrow)


class _OnDevices(_OnHost):
    """A gradient that is ready will be in its place in the order of the current stream of its device."""

    def __init__(
        self,
        operations: TensorOperations,
        arenas: GradientArenas,
        narrowing: Narrowing,
        statement: Statement,
        expected: Iterable[int] | None,
    ) -> None:
        super().__init__(operations, arenas, narrowing, statement, expected)
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
        device = self._arenas.device(buffer.gradients[0])
        if device is None:
            return super().submit(buffer)
        assert buffer.mirror is not None, "what is on a device has a mirror"
        made_in = [stream for its_device, stream in self._streams if its_device is device and stream != device.current]
        narrow = self._narrowing.of_buffer(buffer.label)
        return self._through.allreduce_through(buffer.mirror, buffer.label, buffer.memory, "mean", narrow, made_in)
