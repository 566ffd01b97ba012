"""DistributedDataParallel's built-in communication hooks, which PyTorch has in C++.

``ALLREDUCE`` works as it is. ``FP16_COMPRESS`` wants a future that holds a list of tensors of C++, and what Python sets in a
future is an object of Python. So where a module's process group is Shoal's, the hook that PyTorch has in Python for the same
purpose, ``fp16_compress_hook``, is registered in its place.
"""

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# PyTorch's description of both lacks what begins with an underscore.
_dist: Any = dist
_Wrapper: Any = DistributedDataParallel
_register = _Wrapper._register_builtin_comm_hook


def replace_for(process_group: type[Any]) -> None:
    """From now on modules whose process group is of that class are given the hook in Python. May be called again."""

    def _register_builtin_comm_hook(module: Any, comm_hook_type: Any) -> None:
        if comm_hook_type != _dist.BuiltinCommHookType.FP16_COMPRESS or not isinstance(
            module.process_group, process_group
        ):
            _register(module, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        module.logger._set_comm_hook_name(str(comm_hook_type))
        _dist._register_comm_hook(module.reducer, module.process_group, fp16_compress_hook)

    _Wrapper._register_builtin_comm_hook = _register_builtin_comm_hook
