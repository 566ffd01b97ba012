"""What averaging has cost a wrapped module: bytes, operations, and how much of their time the backward pass hid."""

from dataclasses import dataclass, fields

from shoal.torch.averaging import TensorAveraging

NANOSECONDS = 1e9


@dataclass(frozen=True)
class DDPLoggingData:
    """Sums over the averaged backward passes of one rank. Two of them can be subtracted: what came in between.

    ``passes``: backward passes that have averaged.
    ``bytes``: of gradients in buffers that were averaged.
    ``skipped_bytes``: of gradients in buffers that no rank had a gradient for, and that were not sent.
    ``operations``: submitted, with the small ones by which the ranks of a pass agree.
    ``backward_seconds``: from the first sign of a backward pass to the last gradient.
    ``communication_seconds``: from the first buffer that was submitted to the last result.
    ``overlap_seconds``: the part of ``communication_seconds`` in which gradients were still computed.
    ``waited_seconds``: from the last gradient to the end of ``loss.backward()``.
    ``order_renewals``: how often the gradients were given another order after the first pass, theirs having changed for good.
    """

    passes: int = 0
    bytes: int = 0
    skipped_bytes: int = 0
    operations: int = 0
    backward_seconds: float = 0.0
    communication_seconds: float = 0.0
    overlap_seconds: float = 0.0
    waited_seconds: float = 0.0
    order_renewals: int = 0

    def __sub__(self, earlier: "DDPLoggingData") -> "DDPLoggingData":
        return _combined(self, earlier, -1)

    def __add__(self, other: "DDPLoggingData") -> "DDPLoggingData":
        return _combined(self, other, 1)


def one_pass(
    averaging: TensorAveraging, all_bytes: int, begun_ns: int, computed_ns: int, now_ns: int
) -> DDPLoggingData:
    """A pass whose operations are done. Times are of the monotonic clock; ``computed_ns``: when the gradients were there.

    ``all_bytes``: of all buffers, sent or not.
    """
    sent = sum(buffer.memory.nbytes for buffer, _ in averaging.sent)
    first = averaging.submitted_ns
    # Where streams wait for averages, some may not be there yet.
    last = max((handle.finished_ns if handle.done() else now_ns for _, handle in averaging.sent), default=first)
    return DDPLoggingData(
        passes=1,
        bytes=sent,
        skipped_bytes=all_bytes - sent,
        operations=averaging.operation_count,
        backward_seconds=(computed_ns - begun_ns) / NANOSECONDS,
        communication_seconds=(last - first) / NANOSECONDS,
        overlap_seconds=max(0, min(last, computed_ns) - first) / NANOSECONDS,
        waited_seconds=(now_ns - computed_ns) / NANOSECONDS,
    )


def _combined(one: DDPLoggingData, other: DDPLoggingData, sign: int) -> DDPLoggingData:
    values = {field.name: getattr(one, field.name) + sign * getattr(other, field.name) for field in fields(one)}
    return DDPLoggingData(**values)
