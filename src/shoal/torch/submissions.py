"""The operations of a group, where their tensors may be those of an accelerator."""

from shoal import _native
from shoal.ops.submissions import Submissions
from shoal.torch.accelerators import Accelerator
from shoal.torch.staging import Room, Transfer, Ways


class TensorSubmissions(Submissions):
    """``room``: the pinned memory of its operations."""

    def __init__(self, room: Room | None = None) -> None:
        super().__init__()
        self._room = Room() if room is None else room
        self._ways: dict[Accelerator, Ways] = {}

    def transfer(self, device: Accelerator, waits: bool = True) -> Transfer:
        """For an operation on tensors of that device, before it is submitted.

        ``waits``: whether its caller waits while earlier operations have all of the pinned memory. Not to be done in a
        callback: on another rank the earlier ones may be waiting for what it calls.
        """
        _native.note_call()
        ways = self._ways.get(device)
        if ways is None:
            ways = self._ways[device] = Ways(device.stream(), device.stream())
        return Transfer(device, ways, self._room, waits)
