"""The operations of a backward pass, on arenas of the host and of accelerators."""

from collections.abc import Iterable

from shoal.gradients.averaging import SMALL, Averaging
from shoal.ops.submissions import Pending
from shoal.torch.accelerators import Accelerator, Stream
from shoal.torch.arena import Buffer
from shoal.torch.managed_parameters import ManagedParameters
from shoal.torch.node_passes import NodePasses
from shoal.torch.tensor_operations import TensorOperations

TensorAveraging = Averaging[Buffer]


def averaging_of(
    operations: TensorOperations,
    managed: ManagedParameters,
    expected: Iterable[int] | None,
    passes: NodePasses | None,
) -> TensorAveraging:
    """The operations of a pass that begins. ``expected``: as for ``Averaging``. ``passes``: where nodes sum first."""
    if passes is not None:
        return _InNodes(operations, managed, expected, passes)
    kind = _OnDevices if managed.arenas.has_devices else _OnHost
    return kind(operations, managed, expected)


class _OnHost(TensorAveraging):
    def __init__(
        self, operations: TensorOperations, managed: ManagedParameters, expected: Iterable[int] | None
    ) -> None:
        arenas = managed.arenas
        super().__init__(operations, arenas.buffers, arenas.touched, arenas.frozen, managed.statement(), expected)
        self._through = operations
        self._arenas = arenas
        self._narrowing = managed.narrowing

    def submit(self, buffer: Buffer) -> Pending:
        return self._through.average(buffer, self._narrowing)


class _OnDevices(_OnHost):
    """A gradient that is ready will be in its place in the order of the current stream of its device."""

    def __init__(
        self, operations: TensorOperations, managed: ManagedParameters, expected: Iterable[int] | None
    ) -> None:
        super().__init__(operations, managed, expected)
        # Where the gradients that are ready were made: autograd has a stream for each part of the graph that the
        # program gave one.
        self._streams: set[tuple[Accelerator, Stream]] = set()

    def ready(self, gradient: int) -> None:
        device = self._arenas.device(gradient)
        if device is not None and not self.progress.is_ready(gradient):
            self._streams.add((device, device.current))
        super().ready(gradient)

    def submit(self, buffer: Buffer) -> Pending:
        return self._through.average(buffer, self._narrowing, self._made_in(buffer))

    def _made_in(self, buffer: Buffer) -> list[Stream]:
        """The streams in which its gradients were made, beside the current one."""
        device = self._arenas.device(buffer.gradients[0])
        return [
            stream
            for its_device, stream in self._streams
            if device is not None and its_device is device and stream != device.current
        ]


class _InNodes(_OnDevices):
    """The operations on buffers are those of a pass inside nodes, and between them."""

    def __init__(
        self,
        operations: TensorOperations,
        managed: ManagedParameters,
        expected: Iterable[int] | None,
        passes: NodePasses,
    ) -> None:
        super().__init__(operations, managed, expected)
        needed = None if self._needed is None else self._needed.of_all
        buffers = {number: self._arenas.buffers[number] for number in self.progress.filled}
        self._inside = passes.begin(buffers, self._narrowing, self._comparison.agreed, needed)

    @property
    def operation_count(self) -> int:
        return super().operation_count + 1

    def submit(self, buffer: Buffer) -> Pending:
        return self._inside.submit(buffer, self._made_in(buffer))

    def fail(self, label: str, reason: str) -> None:
        if not self._inside.fail(label, reason) and label in SMALL:
            super().fail(label, reason)

    def wait(self) -> Exception | None:
        failure = super().wait()
        return failure or self._inside.await_end()
