"""More programs as those of torch_programs.py: settings of PyTorch that a program changes, and tensors of other kinds."""

import gc
from typing import Any

import torch
from torch import nn
from torch_programs import Wrap, gradients, lines, program, x

import shoal
from shoal.torch import DistributedDataParallel


@program
def a_module_whose_wrapper_is_gone_is_converted_by_swapping(wrap: Wrap) -> Any:
    module = lines()
    model = wrap(module)
    model(x()).sum().backward()
    del model
    gc.collect()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return [module(torch.ones(1, 1).double()), *gradients(module)]


@program
def tensors_are_made_on_another_device_unless_they_say_where(wrap: Wrap) -> Any:
    modules = [nn.Sequential(*lines(), nn.BatchNorm1d(1)) for _ in range(3)]
    value, found = torch.arange(4.0).view(4, 1) * (shoal.rank() + 1), []
    # Stands for "cuda", which programs set.
    torch.set_default_device("meta")
    try:
        for module, options in zip(
            modules, ({}, {"find_unused_parameters": True}, {"static_graph": True}), strict=True
        ):
            model = wrap(module, **options)
            for _ in range(2):
                model(value).square().sum().backward()
            found.append(gradients(model))
        with model.join():
            for _ in range(1 + shoal.rank()):
                model(value).square().sum().backward()
        found.append([parameter.detach() for parameter in model.parameters()])
        # Results of shoal's own operations are new tensors, and of the host.
        found += [shoal.reducescatter(value), shoal.allreduce(value), shoal.allgather(value), shoal.alltoall(value)]
    finally:
        torch.set_default_device(None)
    return found


@program
def a_module_is_wrapped_in_inference_mode(wrap: Wrap) -> Any:
    module = nn.Sequential(*lines(), nn.BatchNorm1d(1))
    # PyTorch's own cannot be trained then.
    with torch.inference_mode(wrap is DistributedDataParallel):
        model = wrap(module)
    model(torch.arange(4.0).view(4, 1) * (shoal.rank() + 1)).square().sum().backward()
    return gradients(model)


@program
def a_buffer_has_elements_that_share_memory(wrap: Wrap) -> Any:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = lines()
            values = torch.full((1,), float(shoal.rank() + 3)).expand(4, 1)
            # PyTorch's own refuses it as it is.
            self.register_buffer("shift", values if wrap is DistributedDataParallel else values.clone())

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.lines(value + self.shift)
            return out

    model, found = wrap(Shifted()), []
    for step in range(2):
        model(x(step + 1.0)).square().sum().backward()
        found.append([gradients(model), model.module.shift])
    return found


class OfTheProgram(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


@program
def a_parameter_is_of_a_class_of_the_programs(wrap: Wrap) -> Any:
    found = []
    for options in ({}, {"find_unused_parameters": True}):
        module = lines()
        weight = nn.Parameter(module[0].weight.data.as_subclass(OfTheProgram))
        # PyTorch 2.4 takes such a one for uninitialised, and its own wrapper refuses it.
        if wrap is DistributedDataParallel or not isinstance(weight, nn.UninitializedParameter):
            module[0].weight = weight
        model = wrap(module, **options)
        for step in range(2):
            model.zero_grad()
            model(x(step + 1.0)).as_subclass(torch.Tensor).sum().backward()
            found.append(gradients(model))
    return found


@program
def buffers_are_sparse_or_of_8_bits(wrap: Wrap) -> Any:
    """PyTorch's own leaves sparse ones alone if it is told to, and on gloo knows no numbers of 8 bits: those are in float32 there."""

    class Scaled(nn.Module):
        def __init__(self, kind: torch.dtype, sparse: bool) -> None:
            super().__init__()
            self.lines = lines()
            scale = torch.full((1, 1), 2.0 + shoal.rank())
            self.register_buffer("scale", scale.to_sparse() if sparse else scale.to(kind))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.lines(value) * self.scale.to_dense().float()
            return out

    kind = torch.float8_e4m3fn if wrap is DistributedDataParallel else torch.float32
    found = []
    for model in (wrap(Scaled(kind, sparse=False)), wrap(Scaled(kind, sparse=True), broadcast_buffers=False)):
        for step in range(2):
            model.zero_grad()
            model(x(step + 1.0)).sum().backward()
            found.append(gradients(model))
    return found


@program
def buffers_of_each_rank_are_its_own(wrap: Wrap) -> Any:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = lines()
            self.register_buffer("seen", torch.full((2 + shoal.rank(),), 1.0 + shoal.rank()))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            out: torch.Tensor = self.lines(value) + self.seen.sum()
            return out

    module = Shifted()
    model = wrap(module, broadcast_buffers=False)
    found = []
    for step in range(2):
        model.zero_grad()
        model(x(step + 1.0)).square().sum().backward()
        found.extend([module.seen[:2] - shoal.rank(), *gradients(model)])
    return [len(module.seen) - shoal.rank(), *found]
