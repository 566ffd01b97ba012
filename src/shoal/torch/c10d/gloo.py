"""The gloo group beside a process group, for what is not Shoal's.

Making it costs a key in the store and waits for nobody: two ranks connect when they first exchange something through it. (Before
PyTorch 2.8 all ranks of the group connect when they make it, so it waits for them.)
"""

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from shoal.torch import versions

# gloo's own number of threads for a group.
_THREADS = 2

# PyTorch's description of the class lacks its options.
_Gloo: Any = ProcessGroupGloo


def make(store: Store, incarnation: bytes, rank: int, size: int, timeout: timedelta) -> Any:
    """A backend of PyTorch's, with the same methods as a process group.

    ``incarnation``: names the job. The store may hold the addresses of an earlier start, whose ranks are gone: torchrun keeps
    it when it starts the ranks anew.
    """
    options = _Gloo._Options()
    # One for each group: those whose ranks connect late tell groups on one device apart by nothing.
    late = {"lazy_init": True} if versions.has("gloo connects late") else {}
    options._devices = [_Gloo.create_default_device(**late)]
    options._timeout = timeout
    options._threads = _THREADS
    return _Gloo(PrefixStore(f"gloo {incarnation.hex()}", store), rank, size, options)
