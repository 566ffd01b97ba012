"""More programs as those of torch_programs.py: settings of PyTorch that a program changes."""

import gc
from typing import Any

import torch
from torch import nn
from torch_programs import Wrap, gradients, lines, program, x

import shoal


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
