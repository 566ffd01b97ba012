"""Training jobs that the tests of shoal.torch run on several ranks."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import shoal.torch
from shoal.torch import DistributedDataParallel

STEPS = 50
GLOBAL_BATCH = 24


@dataclass(frozen=True)
class Trained:
    """The parameters after training, flat in float32, and a digest of their bits."""

    parameters: list[float]
    digest: str


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 40), nn.Tanh(), nn.Linear(40, 5)
    )


def global_batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(GLOBAL_BATCH, 2, 6, 6, generator=generator)
    return images, torch.randint(5, (GLOBAL_BATCH,), generator=generator)


def train(model: nn.Module, rank: int, size: int) -> Trained:
    """50 steps on this rank's part of each global batch."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        images, labels = (part.chunk(size)[rank] for part in global_batch(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    return Trained(parameters.tolist(), hashlib.sha256(parameters.numpy().tobytes()).hexdigest())


def train_together(fusion_mb: float | None) -> Trained:
    shoal.torch.init()
    model = DistributedDataParallel(make_model(), fusion_mb=fusion_mb)
    return train(model, shoal.torch.rank(), shoal.torch.size())


def train_alone() -> Trained:
    return train(make_model(), 0, 1)


def first_result_comes_during_the_backward_pass() -> tuple[bool, bool, bool]:
    """Late in the backward pass, before the first layer's gradients exist, waits for the first buffer's result.

    Returns whether the buffer then held the mean over the ranks, whether the last buffer had not been submitted yet, and
    whether it was right in the end.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    shoal.torch.init()
    model = DistributedDataParallel(layers, fusion_mb=0.02)
    results: list[bool] = []

    def wait_for_first_buffer(_: Tensor) -> None:
        averaging, buffers = model._reducer.averaging, model._reducer.arenas.buffers
        assert averaging is not None
        sent = {buffer.label: handle for buffer, handle in averaging.sent}
        first = sent.get(buffers[0].label)
        assert first is not None, "the first buffer should be complete long before the first layer is reached"
        first.wait(timeout=30)
        bias = layers[5].bias.grad
        results.append(torch.equal(bias, torch.full_like(bias, mean_of_ranks())))
        results.append(buffers[-1].label not in sent)

    rows = torch.full((1, 64), 1.0)
    layers[0].register_full_backward_pre_hook(lambda *_: wait_for_first_buffer(rows))
    output = model(rows)
    # The gradient of the last bias is this rank's number plus one.
    (output.sum() * (shoal.torch.rank() + 1)).backward()
    bias = layers[5].bias.grad
    return results[0], results[1], torch.equal(bias, torch.full_like(bias, mean_of_ranks()))


def mean_of_ranks() -> float:
    return (shoal.torch.size() + 1) / 2
