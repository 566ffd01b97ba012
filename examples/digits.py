"""A small convolutional network learns the handwritten digits that come with scikit-learn.

    shoal run -n 4 --nodes 4 --servers 2 examples/digits.py

Every global batch is cut into equal parts, one a rank, so any number of ranks that divides the batch trains the same
model. To show it, rank 0 then trains a second model alone, on the same global batches, and compares the two.
Needs the packages torch, scikit-learn and rich.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import Tensor, nn

import shoal.torch
from shoal.torch import DistributedDataParallel

TEST_IMAGES = 360


@dataclass(frozen=True)
class Digits:
    """Images of shape (n, 1, 8, 8) with values from 0 to 1, and their labels."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load() -> Digits:
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1)[order] / 16
    labels = torch.tensor(bunch.target)[order]
    return Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES])


def make_model(seed: int) -> nn.Module:
    """Smooth everywhere: the jumps in the derivative of ReLU and max pooling would turn differences in the last bit, which
    any other order of sums makes, into differences in the second digit within 300 steps (in one process too)."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    )


def global_batches(digits: Digits, epoch: int, size: int) -> Iterator[Tensor]:
    """The indices of each batch of an epoch, the same on every rank. What does not fill a batch is left out."""
    order = torch.randperm(len(digits.train_labels), generator=torch.Generator().manual_seed(1 + epoch))
    for begin in range(0, len(order) - size + 1, size):
        yield order[begin : begin + size]


class Trainer:
    """Trains ``model`` on this rank's part of every global batch."""

    def __init__(self, model: nn.Module, digits: Digits, options: argparse.Namespace, rank: int, size: int) -> None:
        self.model = model
        self._digits = digits
        self._batch = options.batch
        self._rank, self._size = rank, size
        self._optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9, weight_decay=1e-4)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, options.epochs)

    def train_epoch(self, epoch: int) -> float:
        """Returns the last batch's loss on this rank."""
        self.model.train()
        for batch in global_batches(self._digits, epoch, self._batch):
            mine = batch.chunk(self._size)[self._rank]
            loss = nn.functional.cross_entropy(
                self.model(self._digits.train_images[mine]), self._digits.train_labels[mine]
            )
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        self._schedule.step()
        return loss.item()

    @torch.no_grad()
    def accuracy(self) -> float:
        """On the test images, in percent."""
        self.model.eval()
        found = self.model(self._digits.test_images).argmax(1)
        return 100 * (found == self._digits.test_labels).float().mean().item()


class Reporter:
    """Shows how far the training is: a bar on a terminal, lines elsewhere, nothing on ranks but 0."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(quiet=quiet, highlight=False)

    def train(self, title: str, trainer: Trainer, epochs: int) -> None:
        with Progress(console=self._console, disable=not self._console.is_terminal) as progress:
            task = progress.add_task(title, total=epochs)
            for epoch in range(epochs):
                loss = trainer.train_epoch(epoch)
                progress.advance(task)
                if not self._console.is_terminal:
                    self.say(f"{title}: epoch {epoch + 1} of {epochs}, loss {loss:.4f}")

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)
        self._console.file.flush()


def largest_relative_difference(model: nn.Module, reference: nn.Module) -> float:
    """Over all parameters: the largest difference, relative to the largest value of the same parameter."""
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return max(((ours - theirs).abs().max() / theirs.abs().max()).item() for ours, theirs in pairs)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64, help="images in a global batch (default 64)")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate (default 0.1)")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    shoal.torch.init()
    rank, size = shoal.torch.rank(), shoal.torch.size()
    if options.batch % size:
        raise SystemExit(f"--batch {options.batch} cannot be cut into {size} equal parts")
    digits, report = load(), Reporter(quiet=rank != 0)

    # A seed of its own on each rank: all begin with rank 0's parameters.
    together = Trainer(DistributedDataParallel(make_model(seed=rank)), digits, options, rank, size)
    report.train(f"{size} ranks", together, options.epochs)
    if rank != 0:
        return

    alone = Trainer(make_model(seed=0), digits, options, rank=0, size=1)
    report.train("one process", alone, options.epochs)
    difference = largest_relative_difference(together.model, alone.model)
    report.say(f"test accuracy, {size} ranks:     {together.accuracy():.2f} %")
    report.say(f"test accuracy, one process: {alone.accuracy():.2f} %")
    report.say(f"largest relative difference of a parameter between the two models: {difference:.1e}")


if __name__ == "__main__":
    main()
