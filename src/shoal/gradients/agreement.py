"""Whether all ranks agree: a statement of some lines must be the same on every rank, or an error names the line that differs.

Ranks compare a digest of 64 bytes in one small operation. If digests differ, every rank sees that, and then all of them
exchange the lines.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from shoal.errors import Mismatch
from shoal.gradients.named_operations import NamedOperations
from shoal.ops.handles import Handle

DIGEST_BYTES = 32


class Statement:
    """``lines``: what has to agree, each understandable by itself."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        # The greatest digest and, from its complement, the least: they are one if all ranks agree.
        self._votes = np.array([*digest, *(255 - byte for byte in digest)], np.uint8)

    @property
    def votes(self) -> npt.NDArray[np.uint8]:
        """What the ranks compare: of its maximum over them, one half is the complement of the other if all agree."""
        copy: npt.NDArray[np.uint8] = self._votes.copy()
        return copy

    def compare(self, operations: NamedOperations, label: str) -> "Comparison":
        """Starts to compare with the other ranks' statement of this label."""
        votes = self.votes
        return Comparison(self, label, operations, operations.allreduce(label, votes, "max"), votes)

    def explain(
        self, operations: NamedOperations, label: str, subject: str, labels: Sequence[str]
    ) -> tuple[Mismatch, set[str]]:
        """Where they do not agree, on every rank: what differs, and all ranks' ``labels``."""
        own = json.dumps({"lines": self.lines, "labels": list(labels)}) + "\n"
        gathered = operations.allgather(f"{label}.lines", np.frombuffer(own.encode(), np.uint8))
        everyone = [json.loads(line) for line in gathered.tobytes().decode().splitlines()]
        difference = _first_difference(operations, [each["lines"] for each in everyone])
        message = f"{operations.here}: the ranks do not have the same {subject}: {difference}"
        return Mismatch(message), {label for each in everyone for label in each["labels"]}


@dataclass(frozen=True)
class Comparison:
    """A comparison on its way."""

    statement: Statement
    label: str
    operations: NamedOperations
    handle: Handle
    votes: npt.NDArray[np.uint8]

    def agreed(self) -> bool:
        """Waits for the answer, which is the same on every rank."""
        self.handle.wait()
        return np.array_equal(self.votes[:DIGEST_BYTES], 255 - self.votes[DIGEST_BYTES:])

    def explain(self, subject: str, labels: Sequence[str] = ()) -> tuple[Mismatch, set[str]]:
        """After ``agreed`` was False, on every rank: what differs, and all ranks' ``labels``."""
        return self.statement.explain(self.operations, self.label, subject, labels)


def agree(operations: NamedOperations, label: str, lines: Sequence[str], subject: str) -> None:
    """Raises Mismatch on every rank if they do not all state the same lines."""
    comparison = Statement(lines).compare(operations, label)
    if not comparison.agreed():
        error, _ = comparison.explain(subject)
        raise error


def _first_difference(operations: NamedOperations, statements: Sequence[Sequence[str]]) -> str:
    other = next((member for member, lines in enumerate(statements) if lines != statements[0]), None)
    if other is None:
        return "they differed, but no longer do"
    pairs = zip_longest(statements[0], statements[other], fillvalue="nothing")
    ours, theirs = next((ours, theirs) for ours, theirs in pairs if ours != theirs)
    return f"{operations.member(0)} has [{ours}] where {operations.member(other)} has [{theirs}]"
