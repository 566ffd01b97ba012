"""Uneven inputs: ranks that have run out of them take part in the steps of the others, with gradients of zero.

Inside ``DistributedDataParallel.join()`` every rank says what it does next before it opens anything of it, in one small
operation: it broadcasts buffers, or averages a backward pass, or has run out. So all of them, and those that have run out
too, know what to take part in, who is still there, and whose buffers count. Outside of it none of this happens.

Invariant: every rank opens the same turns, each exactly once. One that leaves with an error opens the next turn as failed,
so that the others hear it instead of waiting; one that was told so by a turn opens no other.
"""

from collections.abc import Callable

import torch

from shoal.errors import Mismatch, ShoalError
from shoal.torch.backward_pass import Turn
from shoal.torch.tensor_operations import TensorOperations

TURN = "turn"

# What a rank does next. A step's ranks do the same, but for those that have run out.
RUN_OUT, LOOK, BUFFERS, PASS = 0, 1, 2, 3
NAMES = {RUN_OUT: "has run out", LOOK: "runs forward", BUFFERS: "broadcasts buffers", PASS: "averages gradients"}


class Joining:
    """One use of ``join()``, on one rank.

    ``divide_by_initial_world_size``: whether averages are over all ranks, or over those that still have inputs.
    ``throw_on_early_termination``: whether it is an error on every rank that one has run out before the others.
    """

    def __init__(
        self, operations: TensorOperations, divide_by_initial_world_size: bool, throw_on_early_termination: bool
    ) -> None:
        self._operations = operations
        self._divide_by_all = divide_by_initial_world_size
        self._throw = throw_on_early_termination
        self._over = False
        self._last_root = 0

    def forward(self, broadcasts: bool) -> int:
        """Before a forward pass of this rank. Returns the member whose buffers count."""
        if broadcasts:
            return self._take_turn(BUFFERS).root
        return self._take_turn(LOOK).root if self._throw else 0

    def backward(self) -> Turn:
        """Before anything of a backward pass is submitted."""
        return self._take_turn(PASS)

    def run_out(self, buffers: Callable[[int], None], average: Callable[[Turn], None]) -> int:
        """This rank has no inputs any more: takes part in what the others do until they have none either.

        ``buffers``: takes part in a broadcast of the buffers from a member. ``average``: in a backward pass. Returns the
        lowest of the members that ran out last.
        """
        while True:
            doing = self._exchange(RUN_OUT)
            if not any(doing):
                self._over = True
                return self._last_root
            turn = self._turn(doing)
            if BUFFERS in doing:
                buffers(turn.root)
            elif PASS in doing:
                average(turn)

    def leave(self, error: BaseException) -> None:
        """This rank leaves with an error. Those that do not know yet hear it in their next turn."""
        if not self._over:
            self._over = True
            reason = f"{self._operations.here} left join() with {type(error).__name__}: {error}"
            self._operations.fail(TURN, reason)

    def _take_turn(self, doing: int) -> Turn:
        return self._turn(self._exchange(doing))

    def _exchange(self, doing: int) -> list[int]:
        """What every member does next."""
        if self._over:
            raise ShoalError(f"{self._operations.here}: this join() has ended with an error: leave it on every rank")
        votes = torch.zeros(self._operations.group.size, dtype=torch.uint8, device="cpu")
        votes[self._operations.group.rank or 0] = doing
        try:
            self._operations.allreduce(TURN, votes, "max").wait()
        except RuntimeError:
            self._over = True
            raise
        found: list[int] = votes.tolist()
        return found

    def _turn(self, doing: list[int]) -> Turn:
        """Raises, on every rank alike, if they cannot go on together."""
        there = [member for member, what in enumerate(doing) if what != RUN_OUT]
        gone = [member for member, what in enumerate(doing) if what == RUN_OUT]
        self._last_root = there[0]
        other = next((member for member in there if doing[member] != doing[there[0]]), None)
        if other is not None:
            self._over = True
            raise Mismatch(
                f"{self._operations.here}: the ranks do not take the same steps: {self._say(doing, there[0])} where "
                f"{self._say(doing, other)}. Inside join() each step has the same forward and backward passes on every rank"
            )
        if gone and self._throw:
            self._over = True
            raise ShoalError(
                f"{self._operations.here}: {self._say(doing, gone[0])} of inputs while {self._operations.member(there[0])} has some "
                "left, and throw_on_early_termination=True makes that an error on every rank"
            )
        return Turn(there[0], 1.0 if self._divide_by_all else len(doing) / len(there))

    def _say(self, doing: list[int], member: int) -> str:
        return f"{self._operations.member(member)} {NAMES[doing[member]]}"
