"""What PyTorch's versions do differently. No other module knows versions: they ask here for a feature by its name.

The wrapper and the hook go back to 2.4, the backend to 2.6. Each feature has the version that brought it, and the names of
PyTorch's that came with it, if it shows in names: then their being there decides, and a test says whether the version is right.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch._C._dynamo import eval_frame

from shoal.errors import ConfigurationError

# Of the backend; the wrapper and the hook go back further.
OLDEST_OF_BACKEND = (2, 6)

RELEASE = (int(torch.__version__.split(".")[0]), int(torch.__version__.split(".")[1]))


class Feature(NamedTuple):
    """``since``: the first release that has it. ``names``: of PyTorch's, there from then on and not before."""

    since: tuple[int, int]
    names: tuple[str, ...] = ()


FEATURES = {
    # Two ranks of a gloo group may connect when they first exchange something; before, all connect when it is made.
    "gloo connects late": Feature((2, 8)),
    # Who is handed a Work in C++ keeps the Python half of it too.
    "works are held": Feature((2, 7)),
    # destroy_process_group tells process groups that they are destroyed.
    "process groups are shut down": Feature((2, 7), ("ProcessGroup.shutdown", "ProcessGroup.abort")),
    "process groups have a timeout": Feature((2, 9), ("ProcessGroup.set_timeout",)),
    # The compiler can be told to leave a function's code alone.
    "code can be skipped": Feature(
        (2, 7), ("eval_frame._FrameAction", "eval_frame._FrameExecStrategy", "eval_frame.set_code_exec_strategy")
    ),
    # Collectives on one tensor have names that end so, as all_gather_single.
    "single": Feature(
        (2, 13),
        (
            "ProcessGroup.all_gather_single",
            "ProcessGroup.all_gather_single_coalesced",
            "ProcessGroup.all_to_all_single",
            "ProcessGroup.reduce_scatter_single",
            "ProcessGroup.reduce_scatter_single_coalesced",
        ),
    ),
}

# The names of methods of process groups since 2.13 → before. The old ones of the first three are still called.
BEFORE_SINGLE = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


# The same of functions of torch.distributed.
_COLLECTIVES_BEFORE_SINGLE = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def check_backend() -> None:
    """Raises ConfigurationError if this PyTorch is too old for the backend."""
    if RELEASE < OLDEST_OF_BACKEND:
        oldest = ".".join(map(str, OLDEST_OF_BACKEND))
        raise ConfigurationError(
            f'the backend "shoal" needs PyTorch {oldest} or later, and this is {torch.__version__}: upgrade PyTorch, or take '
            "shoal.torch.DistributedDataParallel, or shoal.torch.comm_hook with the backend gloo"
        )


def has(feature: str) -> bool:
    """Whether the PyTorch that is here has it: its names are surer than the release, where it shows in names."""
    since, names = FEATURES[feature]
    if not names:
        return since <= RELEASE
    owners = {"ProcessGroup": ProcessGroup, "eval_frame": eval_frame}
    return all(hasattr(owners[owner], name) for owner, name in (each.split(".") for each in names))


def collective(name: str) -> Any:
    """The function of torch.distributed that the newest PyTorch calls ``name``."""
    return getattr(dist, name if has("single") else _COLLECTIVES_BEFORE_SINGLE[name])


def method_name(name: str) -> str:
    """What this PyTorch calls the method of process groups that the newest calls ``name``."""
    return name if has("single") else BEFORE_SINGLE.get(name, name)
