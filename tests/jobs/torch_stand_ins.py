"""More programs as those of torch_programs.py: tensors that stand in for a module's parameters."""

from typing import Any

import torch
import torch.distributed as dist
from torch.func import functional_call
from torch_programs import Wrap, gradients, lines, program, x


@program
def weights_that_are_no_leaves_stand_in_for_the_parameters(wrap: Wrap) -> Any:
    model = wrap(lines())
    found = []
    for _ in range(2):
        model.zero_grad()
        scaled = {name: parameter * 1.5 for name, parameter in model.named_parameters()}
        functional_call(model, scaled, (x(),)).sum().backward()
        found.append(gradients(model))
        model(x()).sum().backward()
        found.append(gradients(model))
    return found


@program
def other_parameters_on_each_rank_stand_in_for_the_parameters(wrap: Wrap) -> Any:
    model = wrap(lines())
    found = []
    for _ in range(2):
        model.zero_grad()
        own = {
            name: torch.nn.Parameter(parameter.detach() + dist.get_rank())
            for name, parameter in model.named_parameters()
        }
        functional_call(model, own, (x(),)).sum().backward()
        found.append([parameter.grad for parameter in own.values()])
        found.append(gradients(model))
        model(x()).sum().backward()
        found.append(gradients(model))
    return found
