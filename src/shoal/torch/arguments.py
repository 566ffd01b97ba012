"""The arguments of PyTorch's own DistributedDataParallel: what they mean here, and which have no meaning.

So that a script needs no other change than its import. What is refused is refused when the wrapper is made, with what to do
instead; nothing that would change a result is passed over.
"""

from typing import Any, TypeVar

import torch.distributed as dist

from shoal.errors import ConfigurationError
from shoal.job import groups, runtime
from shoal.job.groups import Group

# Arguments without a meaning here: the only value that asks for nothing, and what to do instead.
_REFUSED = {
    "dim": (0, "inputs are not scattered over devices: leave it out"),
    "delay_all_reduce_named_params": (None, "every gradient is averaged with its buffer: leave it out"),
    "param_to_hook_all_reduce": (None, "every gradient is averaged with its buffer: leave it out"),
    "mixed_precision": (None, "use torch.autocast, or convert the module: gradients are averaged in their own dtype"),
    "bucket_cap_mb_list": (None, "buffers have equal sizes: pass bucket_cap_mb"),
}

_Value = TypeVar("_Value")


def refuse(**given: Any) -> None:
    """Raises ConfigurationError for a value that cannot be followed, of an argument without a meaning here."""
    for name, value in given.items():
        nothing, instead = _REFUSED[name]
        if value is not nothing and value != nothing:
            raise ConfigurationError(f"{name}={value!r} of DistributedDataParallel has no meaning here: {instead}")


def check_position(init_sync: Any) -> None:
    """Raises TypeError for an argument in the place of another: older PyTorch had ``process_group`` there."""
    if not isinstance(init_sync, bool):
        raise TypeError(
            f"init_sync is True or False, got {type(init_sync).__name__}: arguments by position are those of PyTorch's newest "
            "version, where process_group comes after init_sync; pass process_group and what follows it by name"
        )


def one_of(first: tuple[str, _Value | None], second: tuple[str, _Value | None]) -> _Value | None:
    """Of two names for one thing the one that was given. Raises ConfigurationError if both were, and differ."""
    if first[1] is not None and second[1] is not None and first[1] != second[1]:
        raise ConfigurationError(
            f"{first[0]}={first[1]!r} and {second[0]}={second[1]!r} are two names for the same: pass one of them"
        )
    return second[1] if first[1] is None else first[1]


def group_of(process_group: Any, device_mesh: Any) -> Group:
    """The group that is meant: Shoal's own, one of torch.distributed, or a mesh of one dimension. By default all ranks.

    Raises TypeError for anything else, ValueError on a rank that is not a member of a group of torch.distributed,
    ConfigurationError if that has other ranks than this job.
    """
    if device_mesh is not None:
        if process_group is not None:
            raise ConfigurationError("process_group and device_mesh both say who takes part: pass one of them")
        if device_mesh.ndim != 1:
            raise ConfigurationError(f"a device_mesh must have one dimension, got {device_mesh}: pass one of its parts")
        process_group = device_mesh.get_group(mesh_dim=0)
    if process_group is None:
        return groups.world()
    if isinstance(process_group, Group):
        return process_group
    if dist.is_available() and process_group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not a member of process_group: wrap the module on the group's members only")
    if dist.is_available() and isinstance(process_group, dist.ProcessGroup):
        return _same_ranks(process_group)
    raise TypeError(
        "process_group must be a shoal.Group or a group of torch.distributed, got "
        f"{type(process_group).__module__}.{type(process_group).__name__}"
    )


def _same_ranks(process_group: Any) -> Group:
    if (dist.get_rank(), dist.get_world_size()) != (runtime.rank(), runtime.size()):
        raise ConfigurationError(
            f"this process is rank {runtime.rank()} of {runtime.size()} for Shoal, but rank {dist.get_rank()} of "
            f"{dist.get_world_size()} for torch.distributed: pass a shoal.Group as process_group"
        )
    ranks = dist.get_process_group_ranks(process_group)
    if ranks == list(range(runtime.size())):
        return groups.world()
    return Group(ranks, name=f"torch {process_group.group_name}")
