"""What keeps the ranks of a node from going on together.

Collectives of a node may have no end when a rank of it is lost or has given up: gloo's ranks notice only the loss of those
they exchange with, NCCL's none. So whoever waits for them looks here now and then. A rank that gives up writes so to the
store of torch.distributed.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from torch.distributed import distributed_c10d

from shoal.errors import ShoalError
from shoal.job.session import Session
from shoal.join.terms import rank_name

# How often who waits for the node looks whether something is wrong there, in seconds.
LOOKS_EVERY = 0.25

# How long collectives have to find that out themselves, and who was lost if they have, in seconds.
GRACE = 3.0


class NodeTrouble:
    """``ranks``: of the node. ``key``: the same on all of them, and nowhere else."""

    def __init__(self, session: Session, ranks: Sequence[int], key: str) -> None:
        self.failure: Exception | None = None
        """Why nothing can succeed any more, as far as this rank has found."""
        self._session = session
        self._ranks = ranks
        self._key = f"shoal/{key}"
        self._store = distributed_c10d._get_default_store()

    def look(self) -> Exception | None:
        """Why the ranks cannot go on together, if that is known."""
        if self.failure is None:
            self.failure = self.loss_among(self._ranks) or self._told()
        return self.failure

    def tell(self, error: Exception) -> Exception:
        """A collective has failed with this. The ranks of the node hear of it. Returns what to raise."""
        until = time.monotonic() + GRACE
        failure = self.loss_among(self._ranks)
        while failure is None and time.monotonic() < until:
            time.sleep(LOOKS_EVERY / 10)
            failure = self.loss_among(self._ranks)
        if failure is None:
            failure = ShoalError(
                f"{self._here}: the ranks {list(self._ranks)} of its node cannot sum their gradients any more "
                f"({type(error).__name__}: {error}); end the job"
            )
        failure.__cause__ = error
        self.failure = self.failure or failure
        with suppress(Exception):
            self._store.set(self._key, str(failure))
        return failure

    def loss_among(self, ranks: Iterable[int]) -> Exception | None:
        """That of one of them, if one is lost."""
        losses = (self._session.loss_of(rank) for rank in ranks)
        return next((loss for loss in losses if loss is not None), None)

    def _told(self) -> Exception | None:
        """What another rank of the node has told of."""
        try:
            if self._store.check([self._key]):
                return ShoalError(self._store.get(self._key).decode())
        except Exception as error:
            return ShoalError(f"{self._here}: the store of torch.distributed is gone: {error}")
        return None

    @property
    def _here(self) -> str:
        return rank_name(self._session.rank, self._session.hosts)
