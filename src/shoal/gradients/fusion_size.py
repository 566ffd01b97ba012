"""How large a fusion buffer is: as the program or SHOAL_FUSION_MB says, or what suits the model and the servers."""

from shoal.gradients import layout
from shoal.gradients.layout import MIB
from shoal.job.groups import Group


class FusionSize:
    """The size of a buffer, in bytes, for so many bytes of gradients.

    ``fusion_mb``: the same in MB of 2^20 bytes, if the program has set it.
    """

    def __init__(self, group: Group, fusion_mb: float | None = None) -> None:
        session = group.session
        self._fixed = session.settings.fusion_mb if fusion_mb is None else fusion_mb
        self._servers = sum(weight > 0 for weight in session.weights)

    def __call__(self, total: int) -> int:
        if self._fixed is not None:
            return max(1, round(self._fixed * MIB))
        return layout.fusion_bytes(total, self._servers)
