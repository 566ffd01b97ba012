"""Threads of this process that have never called Shoal, and might.

Ranks that wait for each other in a circle are told so once nothing on them can call anything any more (docs/decisions/circles.md). The
native core knows which threads have ever called Shoal, and what they wait for. Of the others it is told how many there are; while
there are some, it waits longer until it believes that none of them will.
"""

import signal
import sys
import threading

from shoal import _native

# Those of Shoal's own that call nothing before the program has.
_OURS = ("shoal-events", "shoal-links", "shoal-resolve", "shoal-callbacks")

# Modules whose threads run nothing of the program's.
_HARMLESS = ("multiprocessing.", "torch.utils.data.", "torch._inductor.", "tqdm.", "wandb.", "tensorboard.")


def count_strangers() -> int:
    """Threads, and what else may call: an alarm that is set, and PyTorch's threads for the gradients of an accelerator."""
    known = set(_native.caller_threads())
    strangers = sum(thread.ident not in known and not _is_harmless(thread) for thread in threading.enumerate())
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
    return str(getattr(runs, "__module__", "")).startswith(_HARMLESS)
