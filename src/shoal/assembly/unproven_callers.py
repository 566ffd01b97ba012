"""Callers at the rendezvous that claim to be a rank of the job and cannot prove it.

Such a caller may be that rank, with a mistyped secret. Then the rank will not come, and all shall hear why. Or it belongs to
another job or to none. Then the rank still comes, and the caller must cost nothing. Only a rank that stays missing tells
which it was. So callers are remembered here, and may explain a missing rank; rank 0 decides when to give up.
"""

from collections.abc import Sequence

from shoal.errors import AuthenticationError, ConfigurationError, ShoalError
from shoal.net.handshake import Refusal

# What a rank of ours may be refused for when it was set up in another way than rank 0.
EXPLAINING = (Refusal.WRONG_SECRET, Refusal.ENCRYPTION)

_OR_ANOTHER_JOB = "If that caller is of another job, give each job a SHOAL_RENDEZVOUS of its own"


class UnprovenCallers:
    """``tls``: SHOAL_TLS on rank 0. At most one caller a rank is kept: the last."""

    def __init__(self, tls: str) -> None:
        self._tls = tls
        self._callers: dict[int, tuple[Refusal, str]] = {}

    def note(self, rank: int, refusal: Refusal, where: str) -> None:
        """Somebody at the address ``where`` has said that it is this rank, and was refused for one of ``EXPLAINING``."""
        self._callers[rank] = refusal, where

    def ranks(self) -> set[int]:
        """Whose number was used."""
        return set(self._callers)

    def explanation(self, missing: Sequence[int], what: str) -> ShoalError | None:
        """``what`` has happened, and why, for the first of the missing ranks that can be explained; None if there is none."""
        rank = next((rank for rank in missing if rank in self._callers), None)
        if rank is None:
            return None
        refusal, where = self._callers[rank]
        if refusal == Refusal.WRONG_SECRET:
            return AuthenticationError(
                f"{what}: the secret of rank {rank} at {where} is not rank 0's; set SHOAL_SECRET or SHOAL_SECRET_FILE to the same "
                f"on every rank and server. {_OR_ANOTHER_JOB}"
            )
        theirs = "off" if self._tls == "psk" else "psk"
        return ConfigurationError(
            f"{what}: SHOAL_TLS differs, {self._tls} on rank 0, {theirs} on rank {rank} at {where}; it must be the same on every rank "
            f"and server. {_OR_ANOTHER_JOB}"
        )
