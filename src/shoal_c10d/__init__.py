"""What PyTorch loads while it is imported (entry point ``torch.backends``): the name of a backend, and not more.

Shoal itself is imported when the first process group of that name is made, so that programs without one do not wait for it.
"""

from typing import Any


def register() -> None:
    """Makes ``torch.distributed.init_process_group("shoal")`` known. May be called again."""
    import torch.distributed as dist

    if dist.is_available() and "SHOAL" not in dist.Backend._plugins:
        dist.Backend.register_backend("shoal", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, backend_options: Any) -> Any:
    from shoal.torch.c10d.process_group import create

    return create(options, backend_options)
