"""What the stages "steps" and "profile" train: networks as large as ResNet-50 (25.6 M parameters) and GPT-2 small
(124 M).

Nothing is learned: the inputs are noise, made on the device. A rehearsal has the same networks, much smaller.
``Replayed`` stands for a network on ranks that compute nothing: it has the same parameters and buffers, and its
backward pass hands over gradients that were made before.
"""

from typing import Any

import torch
import training_models
from stage import rehearses
from torch import Tensor, nn
from torch.nn import functional

MODELS = ("resnet50", "gpt2")
# Samples a step, and pixels or characters of each.
SHAPES = {"resnet50": (128, 224), "gpt2": (12, 1024)}
SHAPES_OF_REHEARSAL = {"resnet50": (2, 32), "gpt2": (2, 16)}
OPTIMIZERS = {"resnet50": "sgd", "gpt2": "adamw"}
CLASSES, WORDS, WORDS_OF_REHEARSAL = 1000, 50257, 97


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            *_convolution(inputs, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1, 1),
        )
        is_same = inputs == outputs and stride == 1
        self.around = nn.Identity() if is_same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.around(x))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


def _resnet(depths: tuple[int, ...], width: int) -> nn.Module:
    layers: list[nn.Module] = [*_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for index, depth in enumerate(depths):
        for block in range(depth):
            layers.append(Bottleneck(inputs, width << index, 2 if index > 0 and block == 0 else 1))
            inputs = 4 * (width << index)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def _gpt(words: int, length: int, layers: int, width: int, heads: int) -> nn.Module:
    network = training_models.Network(words, length, layers, width, heads)
    network.head.weight = network.characters.weight
    with torch.no_grad():
        network.head.weight.mul_(0.02)  # as GPT-2 begins, so that guesses are small
    return network


def make(name: str, length: int) -> nn.Module:
    """A network of ``MODELS`` with the same parameters wherever it is made, on the CPU."""
    torch.manual_seed(5)
    if name == "resnet50":
        return _resnet((1, 1), 8) if rehearses() else _resnet((3, 4, 6, 3), 64)
    return _gpt(WORDS_OF_REHEARSAL, length, 2, 32, 2) if rehearses() else _gpt(WORDS, length, 12, 768, 12)


def inputs(name: str, samples: int, length: int, place: torch.device) -> tuple[Tensor, Tensor]:
    """What a step learns from: inputs and targets."""
    if name == "resnet50":
        images = torch.randn(samples, 3, length, length, device=place).contiguous(memory_format=torch.channels_last)
        return images, torch.randint(CLASSES, (samples,), device=place)
    words = WORDS_OF_REHEARSAL if rehearses() else WORDS
    text = torch.randint(words, (samples, length + 1), device=place)
    return text[:, :-1], text[:, 1:]


class Replayed(nn.Module):
    """``like``: whose parameters and buffers it has, by their names."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.network = like
        self._gradients = [torch.full_like(parameter, 1e-4) for parameter in like.parameters()]

    def forward(self) -> Tensor:
        made: Tensor = _Replay.apply(self._gradients, *self.network.parameters())  # type: ignore[no-untyped-call]
        return made


class Computed(nn.Module):
    """The network under the name that it has in ``Replayed``. Returns the loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, given: Tensor, targets: Tensor) -> Tensor:
        guessed = self.network(given)
        return functional.cross_entropy(guessed.reshape(-1, guessed.shape[-1]), targets.reshape(-1))


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        context.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(context: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *context.gradients
