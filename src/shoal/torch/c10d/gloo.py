"""The gloo group beside a process group, for what is not Shoal's.

Making it costs a key in the store and waits for nobody: two ranks connect when they first exchange something through it. (Before
PyTorch 2.8 all ranks of the group connect when they make it, so it waits for them.)
"""

import os
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from shoal.config.addresses import interface_addresses
from shoal.job.session import Session
from shoal.torch import versions

# gloo's own number of threads for a group.
_THREADS = 2

# PyTorch's description of the class lacks its options.
_Gloo: Any = ProcessGroupGloo


def make(store: Store, session: Session, rank: int, size: int, timeout: timedelta) -> Any:
    """A backend of PyTorch's, with the same methods as a process group, for ranks of this session's job.

    Raises RuntimeError, of gloo's, where GLOO_SOCKET_IFNAME names no interface of this machine.
    """
    options = _Gloo._Options()
    options._devices = _devices(session)
    options._timeout = timeout
    options._threads = _THREADS
    # The store may hold the addresses of an earlier start, whose ranks are gone: torchrun keeps it when it starts the ranks anew.
    return _Gloo(PrefixStore(f"gloo {session.incarnation.hex()}", store), rank, size, options)


def _devices(session: Session) -> list[Any]:
    """On the interfaces that are named to gloo or to Shoal; else where gloo finds this machine's own name.

    They are made anew for each group: those whose ranks connect late tell groups on one device apart by nothing.
    """
    late = {"lazy_init": True} if versions.has("gloo connects late") else {}
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if names:
        return [_Gloo.create_device(interface=name, **late) for name in names.split(",")]
    addresses = interface_addresses(session.settings.interfaces)
    if addresses:
        return [_Gloo.create_device(hostname=addresses[0], **late)]
    return [_Gloo.create_default_device(**late)]
