"""A small convolutional network in Keras 3 learns the handwritten digits that come with scikit-learn.

    KERAS_BACKEND=tensorflow shoal run -n 4 --nodes 4 --servers 2 examples/keras_digits.py

KERAS_BACKEND is tensorflow, torch or jax. Every global batch is cut into equal parts, one a rank, so any number of ranks that
divides the batch trains the same model. To show it, rank 0 then trains a second model alone, on the same global batches, and
compares the two. Needs the packages keras, scikit-learn and that of the backend.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import shoal.keras

TEST_IMAGES = 360


@dataclass(frozen=True)
class Digits:
    """Images of shape (n, 8, 8, 1) with values from 0 to 1, and their labels."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]


def load() -> Digits:
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = (bunch.images[order, :, :, None] / 16).astype("float32")
    labels = bunch.target[order].astype("int32")
    return Digits((images[TEST_IMAGES:], labels[TEST_IMAGES:]), (images[:TEST_IMAGES], labels[:TEST_IMAGES]))


class GlobalBatches(keras.utils.PyDataset):
    """This rank's part of each global batch, in another order in each epoch. What does not fill a batch is left out."""

    def __init__(self, images: Any, labels: Any, size: int, rank: int, ranks: int) -> None:
        super().__init__()
        self._images, self._labels = images, labels
        self._size, self._rank, self._ranks = size, rank, ranks
        self._random = np.random.default_rng(1)
        self.on_epoch_end()

    def __len__(self) -> int:
        return len(self._labels) // self._size

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        batch = self._order[index * self._size : (index + 1) * self._size]
        mine = np.array_split(batch, self._ranks)[self._rank]
        return self._images[mine], self._labels[mine]

    def on_epoch_end(self) -> None:
        self._order = self._random.permutation(len(self._labels))


def make_model(seed: int) -> Any:
    """Smooth everywhere: the jumps in the derivative of ReLU and max pooling would turn differences in the last bit, which
    any other order of sums makes, into differences in the second digit."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="gelu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="gelu"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="gelu"),
            keras.layers.Dense(10),
        ]
    )


def make_optimizer(steps: int, rate: float) -> Any:
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=rate, warmup_steps=steps // 10)
    return keras.optimizers.SGD(schedule, momentum=0.9)


def compiled(model: Any, optimizer: Any) -> Any:
    # On TensorFlow, "auto" is XLA on GPUs, which cannot compile what goes to other ranks.
    jit_compile = False if keras.backend.backend() == "tensorflow" else "auto"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit_compile)
    return model


def accuracy(model: Any, digits: Digits) -> float:
    """On the test images, in percent."""
    return 100 * model.evaluate(*digits.test, verbose=0, return_dict=True)["accuracy"]


def largest_relative_difference(model: Any, reference: Any) -> float:
    """Over all weights: the largest difference, relative to the largest value of the same weight."""
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64, help="images in a global batch (default 64)")
    parser.add_argument("--rate", type=float, default=0.1, help="the highest learning rate (default 0.1)")
    parser.add_argument("--save", metavar="FILE.keras", help="where to keep the model of the best epoch")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    shoal.keras.init()
    rank, size = shoal.keras.rank(), shoal.keras.size()
    if options.batch % size:
        raise SystemExit(f"--batch {options.batch} cannot be cut into {size} equal parts")
    digits = load()
    batches = GlobalBatches(*digits.train, options.batch, rank, size)
    steps = options.epochs * len(batches)

    # A seed of its own on each rank: all begin with rank 0's weights.
    together = make_model(seed=rank)
    compiled(together, shoal.keras.DistributedOptimizer(make_optimizer(steps, options.rate)))
    callbacks = [shoal.keras.callbacks.BroadcastVariablesCallback(), shoal.keras.callbacks.MetricAverageCallback()]
    if options.save:
        callbacks.append(shoal.keras.callbacks.BestModelCheckpoint(options.save, monitor="loss"))
    report = 2 if rank == 0 else 0
    together.fit(batches, epochs=options.epochs, shuffle=False, callbacks=callbacks, verbose=report)
    if rank != 0:
        return

    alone = compiled(make_model(seed=0), make_optimizer(steps, options.rate))
    alone.fit(GlobalBatches(*digits.train, options.batch, 0, 1), epochs=options.epochs, shuffle=False, verbose=0)
    print(f"test accuracy, {size} ranks:     {accuracy(together, digits):.2f} %")
    print(f"test accuracy, one process: {accuracy(alone, digits):.2f} %")
    difference = largest_relative_difference(together, alone)
    print(f"largest relative difference of a weight between the two models: {difference:.1e}")


if __name__ == "__main__":
    main()
