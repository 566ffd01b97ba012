"""The arguments of PyTorch's own DistributedDataParallel: what they mean here, and which have no meaning.

So that a script needs no other change than its import. What is refused is refused when the wrapper is made, with what to do
instead; nothing that would change a result is passed over.
"""

import math
from numbers import Real
from typing import Any

import torch.distributed as dist

from shoal.assembly.terms import rank_name
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


def megabytes(**names: Any) -> float | None:
    """The size that was given by one of these names, in MB (2^20 bytes); None if it was by none.

    Raises TypeError for what is no number, ValueError for one that is not above 0 or not finite, ConfigurationError if
    two names were given, with different values.
    """
    given = {name: value for name, value in names.items() if value is not None}
    sizes = set()
    for name, value in given.items():
        what_to_do = f"{_here()}: leave it out for a size that fits the model and the servers"
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be a number of MB, got {value!r}, of type {type(value).__name__}{what_to_do}")
        size = float(value)
        if not (size > 0 and math.isfinite(size)):
            raise ValueError(f"{name} must be a number of MB above 0, got {value!r}{what_to_do}")
        sizes.add(size)
    if len(sizes) > 1:
        both = " and ".join(f"{name}={value!r}" for name, value in given.items())
        raise ConfigurationError(f"{both} are two names for the same: pass one of them")
    return sizes.pop() if sizes else None


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


def _here() -> str:
    """Where this is, for messages, if it is known yet: wrappers join the job after a look at their arguments."""
    if not runtime.is_initialized():
        return ""
    session = runtime.current()
    return f" on {rank_name(session.rank, session.hosts)}"


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
