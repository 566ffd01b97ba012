"""One backward pass of a wrapper, as far as it has come."""

import time
from typing import NamedTuple

import torch

from shoal.errors import ShoalError
from shoal.job import trace
from shoal.torch import complaints
from shoal.torch.averaging import TensorAveraging
from shoal.torch.managed_parameters import ManagedParameters


class Turn(NamedTuple):
    """How the ranks take the next pass. ``root``: the group's member whose word counts where one has to be chosen.

    ``scale``: what the mean over all members is multiplied by.
    """

    root: int = 0
    scale: float = 1.0


class Arrived(NamedTuple):
    """What has come of a pass's gradients: when the last was there, which there were, and what went wrong."""

    computed_ns: int
    used: torch.Tensor
    error: Exception | None


class BackwardPass:
    """``averages``: whether it averages. If not, its forward pass was inside ``no_sync``, and gradients are only put into
    their slots. ``here``: this rank, for messages.

    ``placed``: gradients that are in their slots and do not count yet. ``averaging``: its operations, once it has
    started. ``arrivals``: the gradients that count, in the order in which they came. ``unused``: parameters without a
    gradient → what to restore afterwards. ``error``: what went wrong first. ``arrived``: set once no gradient is to come.
    """

    def __init__(self, managed: ManagedParameters, here: str, averages: bool) -> None:
        self.averages = averages
        self.is_started = False
        self.begun_ns = time.monotonic_ns()
        self.turn = Turn()
        self.placed: list[int] = []
        self.averaging: TensorAveraging | None = None
        self.arrivals: list[int] = []
        self.error: Exception | None = None
        self.arrived: Arrived | None = None
        self._managed = managed
        self._here = here
        self.unused: dict[int, torch.Tensor | None] = {}
        # The gradients that lie in their slots, with their versions when they came.
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}

    def count_in(self, index: int, placed: torch.Tensor | None) -> None:
        """The gradient is in its slot, in a pass that averages. ``placed``: what is there as ``param.grad``."""
        managed, averaging = self._managed, self.averaging
        static = managed.static if managed.is_static else None
        assert averaging is not None, "the pass has been started"
        if trace.recording():
            trace.instant("gradient ready", parameter=managed.parameters[index][0])
        self.arrivals.append(index)
        if static is None or static.arrived(index):
            if placed is not None:
                self._versions[index] = placed, placed._version
            averaging.ready(index)

    def contribute_unused(self, index: int) -> None:
        """What a parameter has that gets no gradient stands in for one."""
        assert self.averaging is not None, "the pass has been started"
        self.unused[index] = self._managed.arenas.contribute_unused(index)
        self.averaging.ready(index)

    def contribute_zeros(self) -> None:
        """Zeros stand in for all gradients: this rank has none of its own."""
        assert self.averaging is not None, "the pass has been started"
        for index in self._managed.trainable:
            self._managed.arenas.slot(index).zero_()
            self.unused[index] = None
            self.averaging.ready(index)

    def complete(self) -> None:
        """All gradients are there, or will not come: submits what is open for want of those."""
        assert self.averaging is not None, "the pass has been started"
        computed_ns = time.monotonic_ns()
        used = torch.zeros(len(self._managed.parameters), dtype=torch.uint8, device="cpu")
        self.arrived = Arrived(computed_ns, used, self.error or self._account_for_missing(self.averaging, used))

    def written_to(self) -> ShoalError | None:
        """The error if the program has written to a gradient that was on its way. Nothing refers to gradients
        afterwards.
        """
        arenas = self._managed.arenas
        changed = [
            index
            for index, (gradient, version) in self._versions.items()
            if gradient._version != version and arenas.is_in_slot(index, gradient)
        ]
        changed += arenas.written_while_lent()
        # Or the arenas could not give their places away where the order changes.
        self._versions.clear()
        if not changed:
            return None
        return ShoalError(complaints.was_changed(self._here, self._managed.parameters[changed[0]][0]))

    def settle(self, used: torch.Tensor) -> None:
        """Every ``param.grad`` becomes what was averaged. ``used``: 1 where any rank had a gradient, if unused ones are
        looked for.
        """
        arenas, anywhere = self._managed.arenas, used.tolist()
        for index in dict.fromkeys(self.arrivals):
            if index not in self.unused and (anywhere[index] or not self._managed.find_unused):
                arenas.settle(index)
        for index, saved in self.unused.items():
            arenas.settle_unused(index, saved, used_elsewhere=bool(anywhere[index]))

    def forget(self) -> None:
        """Lets go of everything but the arrivals: whoever keeps an error of the pass may keep it."""
        self.unused.clear()
        self._versions.clear()
        self.averaging = self.arrived = self.error = None

    def _account_for_missing(self, averaging: TensorAveraging, used: torch.Tensor) -> Exception | None:
        """The error if a gradient has not come, or, where that may be, what stands in for it."""
        managed = self._managed
        missing = [index for index in managed.trainable if not averaging.progress.is_ready(index)]
        arrived = set(self.arrivals)
        if not managed.find_unused:
            expected = [index for index in missing if managed.arenas.touched[index]]
            names = [managed.parameters[index][0] for index in expected]
            return ShoalError(complaints.did_not_come(self._here, names)) if names else None
        try:
            for index in missing:
                if index in arrived:
                    averaging.ready(index)
                else:
                    self.contribute_unused(index)
            for index in self.arrivals:
                if not averaging.will_be_sent(index):
                    return ShoalError(complaints.came_too_late(self._here, managed.parameters[index][0]))
            used[sorted(managed.used)] = 1
            averaging.exchange_used(used)
        except Exception as failure:
            return failure
        return None
