"""A small network learns the handwritten digits that come with scikit-learn, with TensorFlow.

    shoal run -n 4 examples/tensorflow_digits.py

Every global batch is cut into equal parts, one a rank, so any number of ranks that divides the batch trains the same
model. To show it, rank 0 then trains a second model alone, on the same global batches, and compares the two. Needs the
packages tensorflow and scikit-learn.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import shoal.tensorflow as shoal

TEST_IMAGES = 360
WIDTHS = (64, 128, 64, 10)


class Digits:
    """Images as rows of 64 values from 0 to 1, and their labels, in an order that all ranks have."""

    def __init__(self) -> None:
        bunch = load_digits()
        order = np.random.default_rng(0).permutation(len(bunch.target))
        images, labels = (bunch.data[order] / 16).astype(np.float32), bunch.target[order].astype(np.int32)
        self.test_images, self.test_labels = images[:TEST_IMAGES], labels[:TEST_IMAGES]
        self._images, self._labels = images[TEST_IMAGES:], labels[TEST_IMAGES:]

    def batches(self, epoch: int, size: int, rank: int, ranks: int) -> Iterator[tuple[Any, Any]]:
        """This rank's part of each global batch of an epoch. What does not fill a batch is left out."""
        order = np.random.default_rng(1 + epoch).permutation(len(self._labels))
        for begin in range(0, len(order) - size + 1, size):
            part = order[begin : begin + size][rank::ranks]
            yield tf.constant(self._images[part]), tf.constant(self._labels[part])


class Network(tf.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        numbers = np.random.default_rng(seed)
        self.layers = [
            (
                tf.Variable(numbers.normal(0, width**-0.5, (width, next_width)).astype(np.float32)),
                tf.Variable(tf.zeros(next_width)),
            )
            for width, next_width in itertools.pairwise(WIDTHS)
        ]

    def __call__(self, x: Any) -> Any:
        for weights, bias in self.layers[:-1]:
            x = tf.tanh(x @ weights + bias)
        weights, bias = self.layers[-1]
        return x @ weights + bias


def make_step(network: Network, rate: float, wrap: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in network.trainable_variables]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=network(x))
            loss = tf.reduce_mean(losses)
        gradients = wrap(tape).gradient(loss, network.trainable_variables)
        for gradient, velocity, variable in zip(gradients, velocities, network.trainable_variables, strict=False):
            velocity.assign(0.9 * velocity + gradient)
            variable.assign_sub(rate * velocity)
        return loss

    return step


def train(
    network: Network, digits: Digits, options: argparse.Namespace, wrap: Callable[[Any], Any], rank: int, ranks: int
) -> None:
    step = make_step(network, options.rate, wrap)
    for epoch in range(options.epochs):
        for x, y in digits.batches(epoch, options.batch, rank, ranks):
            loss = step(x, y)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {float(loss):.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=48, help="images in a global batch")
    parser.add_argument("--rate", type=float, default=0.1)
    options = parser.parse_args()
    shoal.init()
    digits, network = Digits(), Network(seed=shoal.rank())
    shoal.broadcast_variables(network.variables, root=0)
    train(network, digits, options, shoal.DistributedGradientTape, shoal.rank(), shoal.size())
    if shoal.rank() == 0:
        right = np.mean(np.argmax(network(digits.test_images), 1) == digits.test_labels)
        print(f"{shoal.size()} ranks: accuracy {right:.1%} on {TEST_IMAGES} images that it has not seen")
        alone = Network(seed=0)
        train(alone, digits, options, lambda tape: tape, 0, 1)
        difference = max(float(np.max(np.abs(a - b))) for a, b in zip(network.variables, alone.variables, strict=False))
        print(f"largest difference of a weight from one process: {difference:.1e}")
    shoal.shutdown()


if __name__ == "__main__":
    main()
