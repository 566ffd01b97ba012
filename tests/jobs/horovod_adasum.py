"""Adasum at Horovod's door, for 2 and 4 ranks: what the paper's formula gives, and training that the sum lets diverge."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal.horovod.torch as hvd


def combined(arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Maleki et al. (2021), equation 4, in pairs of neighbours."""
    while len(arrays) > 1:
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        arrays = [(1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b for a, b in pairs]
    return arrays[0]


def mine(rank: int) -> torch.Tensor:
    return torch.randn(33, generator=torch.Generator().manual_seed(rank)) + 1


def check_numbers() -> None:
    expected = combined([mine(rank).double().numpy() for rank in range(hvd.size())])
    tensor = mine(hvd.rank())
    assert np.allclose(hvd.allreduce(tensor, op=hvd.Adasum), expected, atol=1e-5)
    assert torch.equal(tensor, mine(hvd.rank()))
    assert np.allclose(hvd.allreduce(tensor, op=hvd.Adasum, postscale_factor=3.0, name="a"), 3 * expected, atol=1e-5)
    assert hvd.allreduce_(tensor, op=hvd.Adasum, prescale_factor=2.0, name="b") is tensor
    assert np.allclose(tensor, 2 * expected, atol=1e-5)
    group = hvd.grouped_allreduce([mine(hvd.rank()), mine(hvd.rank()).half()], op=hvd.Adasum, name="c")
    assert [np.allclose(each.float(), expected, atol=1e-2) for each in group] == [True, True]
    with pytest.raises(TypeError, match="floating"):
        hvd.allreduce(torch.ones(3, dtype=torch.int32), op=hvd.Adasum)
    single = hvd.ProcessSet(range(1, hvd.size()))
    hvd.add_process_set(single)
    if hvd.rank() and hvd.size() == 4:
        with pytest.raises(NotImplementedError, match="wants 1, 2, 4, 8"):
            hvd.allreduce(torch.ones(3), op=hvd.Adasum, process_set=single)


def loss_after(op: Any, lr: float, steps: int = 30) -> float:
    """Of a regression that all ranks see alike, so that their gradients point the same way."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    inputs = torch.randn(64, 8)
    targets = inputs @ torch.arange(8.0).unsqueeze(1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr), model.named_parameters(), op=op)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
    assert all(torch.equal(each, hvd.broadcast(each, 0)) for each in model.parameters())
    return loss.item()


def check_training() -> None:
    lr = 0.35
    assert loss_after(hvd.Average, lr) < 1.0
    assert not loss_after(hvd.Sum, lr) < 1e3, "the sum should diverge"
    assert loss_after(hvd.Adasum, lr) < 1.0


def check_optimizer() -> None:
    model = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), 0.1), model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    before = model.weight.detach().clone()
    for _ in range(2):
        model(mine(hvd.rank())[:9].reshape(3, 3)).sum().backward()
        assert torch.equal(model.weight.detach(), before), "until the step parameters are as they were"
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    assert not torch.equal(model.weight.detach(), before)
    assert torch.equal(model.weight.detach(), hvd.broadcast(model.weight.detach(), 0))
    with pytest.raises(AssertionError, match="leave it out"), optimizer.skip_synchronize():
        pass


def check_abandoned_optimizer() -> None:
    model = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), op=hvd.Adasum)
    model(torch.ones(2, 3)).sum().backward()
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None, "at once, though changes are on their way"


def all_of_it() -> None:
    torch.set_num_threads(1)
    hvd.init()
    check_numbers()
    check_optimizer()
    check_abandoned_optimizer()
    check_training()
