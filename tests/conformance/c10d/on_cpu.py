"""PyTorch's tests for GPUs on CPU tensors: 89 of the suite's 101 tests of DistributedDataParallel ask for two GPUs, and most
have no other use for them than to put tensors there.

``lift_gates`` before the suite is imported, ``move_to_cpu`` in the processes of a test.
"""

import contextlib
import os
from typing import Any

CPU = "cpu"


def lift_gates() -> None:
    """Tests that need GPUs are not skipped for want of them."""
    import torch.testing._internal.common_distributed as common

    def lifted(*_: Any, **__: Any) -> Any:
        return lambda test: test

    common.skip_if_lt_x_gpu = common.nccl_skip_if_lt_x_gpu = common.require_n_gpus_for_nccl_backend = lifted
    common.skip_if_no_gpu = lambda test: test
    common.init_multigpu_helper = lambda world_size, _: {rank: [rank] for rank in range(int(world_size))}


def move_to_cpu() -> None:
    """From now on whatever this process puts on a GPU is put on the CPU."""
    import torch

    _DevicesAsCpu().__enter__()
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor.clone()
    torch.nn.Module.cuda = lambda module, *_, **__: module
    _move_modules()
    _pretend_devices()
    _leave_out_device_ids()


def _is_gpu(device: Any) -> bool:
    import torch

    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def _DevicesAsCpu() -> Any:  # a class of PyTorch's, which is imported late
    import torch
    from torch.overrides import TorchFunctionMode

    class DevicesAsCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if _is_gpu(kwargs.get("device")):
                kwargs["device"] = CPU
            if func is torch.Tensor.to and len(args) > 1 and _is_gpu(args[1]):
                args = (args[0], CPU, *args[2:])
            elif func is torch.Tensor.cuda:
                return args[0].clone()
            return func(*args, **kwargs)

    return DevicesAsCpu()


def _move_modules() -> None:
    import torch

    move = torch.nn.Module.to

    def to(module: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_gpu(kwargs.get("device")):
            kwargs["device"] = CPU
        return move(module, *[CPU if _is_gpu(value) else value for value in args], **kwargs)

    torch.nn.Module.to = to


def _pretend_devices() -> None:
    """One device for each rank."""
    import torch

    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "manual_seed"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
    torch.cuda.device = torch.cuda.stream = lambda *_, **__: contextlib.nullcontext()


def _leave_out_device_ids() -> None:
    import torch

    wrapper = torch.nn.parallel.DistributedDataParallel
    make = wrapper.__init__

    def make_without(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        make(self, module, None, None, *args, **kwargs)

    wrapper.__init__ = make_without
