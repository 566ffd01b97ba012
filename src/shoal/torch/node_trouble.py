"""What keeps the ranks of a node from going on together.

Collectives of a node may have no end when a rank of it is lost or has given up: gloo's ranks notice only the loss of those
they exchange with, NCCL's none. So whoever waits for them looks here now and then. A rank that gives up writes so to the
store of torch.distributed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import distributed_c10d

from shoal.assembly.terms import rank_name
from shoal.errors import PeerLost, ShoalError, Timeout
from shoal.job.session import Session
from shoal.torch.nodes import Nodes

# How often who waits for the node looks whether something is wrong there, in seconds.
LOOKS_EVERY = 0.25

# How long collectives have to find that out themselves, and who was lost if they have, in seconds.
GRACE = 3.0


class NodeTrouble:
    """Of the node of ``nodes``. ``key``: the same on its ranks, and nowhere else."""

    def __init__(self, session: Session, nodes: Nodes, key: str) -> None:
        self._failure: Exception | None = None
        self._session = session
        self._ranks: Sequence[int] = nodes.ranks
        self._node_group = nodes.node_group
        self._key = f"shoal/{key}"
        self._store = distributed_c10d._get_default_store()
        self._asked_store: Any = None  # on the threads that ask
        self._heard: Exception | None = None
        self._is_asking = False

    @property
    def failure(self) -> Exception | None:
        """Why nothing can succeed any more, as far as this rank has found."""
        return self._failure

    def look(self) -> Exception | None:
        """Why the ranks cannot go on together, if that is known."""
        if self._failure is None:
            self._ends_with(self.loss_among(self._ranks) or self._told())
        return self._failure

    def tell(self, error: Exception) -> Exception:
        """A collective has failed with this, or the job. The ranks of the node hear of it. Returns what to raise."""
        until = time.monotonic() + GRACE
        is_of_job = isinstance(error, (PeerLost, Timeout))
        failure: Exception | None = error if is_of_job else self.loss_among(self._ranks)
        while failure is None and time.monotonic() < until:
            time.sleep(LOOKS_EVERY / 10)
            failure = self.loss_among(self._ranks)
        if failure is None:
            failure = ShoalError(
                f"{self._here}: the ranks {list(self._ranks)} of its node cannot sum their gradients any more "
                f"({type(error).__name__}: {error}); end the job"
            )
        if failure is not error:
            failure.__cause__ = error
        self._ends_with(failure)
        writer = self._beside(self._write, str(failure))
        if writer is not None:
            writer.join(GRACE)
        return failure

    def loss_among(self, ranks: Iterable[int]) -> Exception | None:
        """That of one of them, if one is lost."""
        losses = (self._session.loss_of(rank) for rank in ranks)
        return next((loss for loss in losses if loss is not None), None)

    def _told(self) -> Exception | None:
        """What another rank of the node has told of, as far as the store has answered."""
        if not self._is_asking:
            self._is_asking = True
            if self._beside(self._ask) is None:
                self._is_asking = False
        return self._heard

    # A store whose machine does not answer, or that has gone, keeps whoever asks it or connects to it, perhaps for good.

    def _ask(self) -> None:
        # If the store is gone, so is the rank that had it, which the job finds.
        with suppress(Exception):
            self._asked_store = self._asked_store or _own_connection(self._store)
            if self._asked_store.check([self._key]):
                self._heard = ShoalError(self._asked_store.get(self._key).decode())
        self._is_asking = False

    def _write(self, text: str) -> None:
        with suppress(Exception):
            _own_connection(self._store).set(self._key, text)

    def _beside(self, call: Callable[..., None], *arguments: str) -> threading.Thread | None:
        """On a thread of its own; None if the system has none."""
        thread = threading.Thread(target=call, args=arguments, name="shoal-trouble", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def _ends_with(self, failure: Exception | None) -> None:
        if failure is not None:
            self._failure = self._failure or failure
            self._node_group.is_broken = True

    @property
    def _here(self) -> str:
        return rank_name(self._session.rank, self._session.hosts)


def _own_connection(store: Any) -> Any:
    """A store answers one question at a time, and NCCL asks PyTorch's for what a lost rank may never write."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError):  # PyTorch before 2.7, and stores that cannot
        return store
