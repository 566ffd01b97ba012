"""Default process groups that PyTorch has destroyed without telling them, as it does before 2.8.

They are still in their job, so the next one would be taken for a group of it. The next one that is made ends them first.
"""

from typing import Any

from torch.distributed import distributed_c10d

from shoal.torch import versions

_c10d: Any = distributed_c10d
_owner: Any = None


def remember(group: Any) -> None:
    """``group``: has joined a job, and leaves it when it is shut down."""
    global _owner
    _owner = None if versions.has("process groups are shut down") else group


def leave() -> None:
    """Leaves the job of a process group that has been destroyed."""
    global _owner
    if _owner is not None and _owner not in _c10d._world.pg_map:
        owner, _owner = _owner, None
        owner.shutdown()
