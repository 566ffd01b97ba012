"""What the ranks of test_comm_hook.py do."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import shoal
import shoal.torch

STEPS = 4


def trained(hook: Any, how: str, state: Any = None) -> list[torch.Tensor]:
    """The parameters after some steps, with a hook or without. ``how``: an option of DistributedDataParallel, or its use."""
    torch.manual_seed(0)
    options: dict[str, Any] = {how: True} if how in ("gradient_as_bucket_view", "static_graph") else {}
    layers = [nn.Linear(64, 64) for _ in range(4)]
    # Several buckets, which PyTorch makes anew in the order of the first step.
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.02, **options)
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(1 + rank)
    with model.join() if how == "join" else nullcontext():
        for step in range(STEPS + (rank if how == "join" else 0)):
            accumulates = how == "no_sync" and step % 2 == 0
            with model.no_sync() if accumulates else nullcontext():
                model(torch.randn(8, 64, generator=generator)).square().mean().backward()
            if not accumulates:
                optimizer.step()
                optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def two_ranks() -> dict[str, Any]:
    """Whether the hook gives the parameters that DistributedDataParallel has without it, to the bit; and more that needs two."""
    dist.init_process_group("gloo")
    found: dict[str, Any] = {}
    for how in ("plain", "gradient_as_bucket_view", "static_graph", "no_sync", "join"):
        with_hook, without = trained(shoal.torch.comm_hook, how), trained(None, how)
        found[how] = all(torch.equal(one, other) for one, other in zip(with_hook, without, strict=True))
    found["compressed"] = compressed()
    found["sparse"] = sparse_gradients()
    found["no group"] = error_of(dist.group.WORLD)
    dist.destroy_process_group()
    return found


def sparse_gradients() -> bool:
    """Whether an embedding's sparse gradients are, with the hook, what they are without."""
    found = []
    for hook in (shoal.torch.comm_hook, None):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1))
        model = DistributedDataParallel(layers)
        if hook is not None:
            model.register_comm_hook(None, hook)
        model(torch.tensor([0, 1, 1] if dist.get_rank() else [2, 1])).square().sum().backward()
        found.append([parameter.grad for parameter in layers.parameters()])
    return all(
        one.layout == other.layout and torch.equal(one.to_dense(), other.to_dense())
        for one, other in zip(*found, strict=True)
    )


def three_ranks() -> dict[str, Any]:
    """Gradients of different dtypes, and of ranks 0 and 2 alone."""
    dist.init_process_group("gloo")
    found: dict[str, Any] = {str(dtype): gradients(dtype) for dtype in (torch.float32, torch.bfloat16)}
    found["group"] = in_a_group()
    dist.destroy_process_group()
    return found


def gradients(dtype: torch.dtype) -> bool:
    """Whether the gradients are what Shoal's all-reduce makes of each rank's own, to the bit."""
    torch.manual_seed(0)
    module = nn.Linear(50, 7).to(dtype)
    model = DistributedDataParallel(module)
    model.register_comm_hook(None, shoal.torch.comm_hook)
    inputs = torch.randn(5, 50, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
    own = torch.autograd.grad(module(inputs).square().sum(), list(module.parameters()))
    model(inputs).square().sum().backward()
    expected = [shoal.allreduce(gradient, op="mean") for gradient in own]
    return all(torch.equal(each.grad, other) for each, other in zip(module.parameters(), expected, strict=True))


def in_a_group() -> list[float]:
    """Ranks 0 and 2 train a model together, rank 1 does something else: the gradients of each."""
    pair, rank = dist.new_group([0, 2]), dist.get_rank()
    if rank == 1:
        return []
    module = nn.Linear(1, 1)
    model = DistributedDataParallel(module, process_group=pair)
    model.register_comm_hook(shoal.Group([0, 2]), shoal.torch.comm_hook)
    model(torch.tensor([[float(rank + 1)]])).sum().backward()
    return [float(parameter.grad.sum()) for parameter in module.parameters() if parameter.grad is not None]


def compressed() -> list[float]:
    """The hook in PyTorch's wrapper that makes gradients float16 for the way."""
    module = nn.Linear(3, 1)
    model = DistributedDataParallel(module)
    model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(shoal.torch.comm_hook))
    model(torch.full((1, 3), 1 + dist.get_rank() * 2.0**-13)).sum().backward()
    assert module.weight.grad is not None
    return [float(value) for value in module.weight.grad.flatten()]


def other_numbers() -> str:
    """A rank of the job, but another one of the process group."""
    shoal.init()
    dist.init_process_group("gloo", rank=1 - shoal.rank(), world_size=2)
    return error_of(None)


def error_of(state: Any) -> str:
    model = DistributedDataParallel(nn.Linear(3, 1))
    model.register_comm_hook(state, shoal.torch.comm_hook)
    try:
        model(torch.ones(1, 3)).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
