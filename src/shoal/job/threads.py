"""Threads of this process that have never called Shoal, and might.

Ranks that wait for each other in a circle are told so once nothing on them can call anything any more
(docs/decisions/circles.md). The native core knows which threads have called Shoal, and what they wait for. This module
counts the others. While there are some, the core waits longer until it believes that none of them will call.
"""

import signal
import sys
import threading

from shoal import _native

# Shoal's own, which run nothing of the program's but callbacks. Callbacks are counted by themselves (callbacks.py).
_OURS = (
    "shoal-events",
    "shoal-links",
    "shoal-resolve",
    "shoal-callbacks",
    "shoal-messages",
    "shoal-watch",
    "shoal-left",
    "shoal-give-up",
    "shoal-farewell",
)

# Modules, and packages, whose threads run nothing of the program's. (Those of multiprocessing.pool do, and of its managers.)
_HARMLESS = (
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "torch.utils.data._utils.pin_memory",
    "torch._inductor",
    "tqdm._monitor",
    "wandb",
    "tensorboard",
)


def count_strangers() -> int:
    """Threads, and what else may call: an alarm that is set, and PyTorch's threads for the gradients of an accelerator.

    Those that run Python without ``threading`` are seen too; a native thread that does not run Python yet is not.
    """
    listed = threading.enumerate()
    known = {*_native.caller_threads(), *(thread.ident for thread in listed if _is_harmless(thread))}
    strangers = len({*sys._current_frames(), *(thread.ident for thread in listed)} - known)
    return strangers + (signal.getitimer(signal.ITIMER_REAL)[0] > 0) + _has_accelerator()


def _has_accelerator() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and any(
        module.is_initialized() for name in ("cuda", "xpu") if (module := getattr(torch, name, None)) is not None
    )


def _is_harmless(thread: threading.Thread) -> bool:
    if thread.name.startswith(_OURS):
        return True
    target = getattr(thread, "_target", None)
    runs = type(thread) if target is None else target
    module = str(getattr(runs, "__module__", ""))
    return any(module == one or module.startswith(one + ".") for one in _HARMLESS)
