"""A small network learns the handwritten digits that come with scikit-learn, with TensorFlow.

    shoal run -n 4 examples/tensorflow_digits.py

Every global batch is cut into equal parts, one a rank, so any number of ranks that divides the batch trains the same
model. To show it, rank 0 then trains a second model alone, on the same global batches, and compares the two. Needs the
packages tensorflow and scikit-learn.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import shoal.tensorflow as stf

TEST_IMAGES = 360


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


def make_network(seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((64,)),
            layers.Dense(128, activation="tanh"),
            layers.Dense(64, activation="tanh"),
            layers.Dense(10),
        ]
    )


def make_step(network: Any, rate: float, wrap: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    optimizer = tf.keras.optimizers.SGD(rate, momentum=0.9)
    optimizer.build(network.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=network(x))
            loss = tf.reduce_mean(losses)
        gradients = wrap(tape).gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return loss

    return step


def train_together(network: Any, digits: Digits, options: argparse.Namespace) -> None:
    step = make_step(network, options.rate, stf.DistributedGradientTape)
    for epoch in range(options.epochs):
        for x, y in digits.batches(epoch, options.batch, stf.rank(), stf.size()):
            loss = step(x, y)
        mean = stf.allreduce(loss)  # over the ranks, of the last batch
        if stf.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(mean):.3f}", flush=True)


def train_alone(network: Any, digits: Digits, options: argparse.Namespace) -> None:
    step = make_step(network, options.rate, lambda tape: tape)
    for epoch in range(options.epochs):
        for x, y in digits.batches(epoch, options.batch, 0, 1):
            loss = step(x, y)
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=48, help="images in a global batch")
    parser.add_argument("--rate", type=float, default=0.1)
    options = parser.parse_args()
    stf.init()
    if options.batch % stf.size():
        raise SystemExit(f"--batch {options.batch} cannot be cut into {stf.size()} equal parts")
    # A seed of its own on each rank: all begin with rank 0's weights.
    digits, network = Digits(), make_network(seed=stf.rank())
    stf.broadcast_variables(network.variables, root=0)
    train_together(network, digits, options)
    if stf.rank() == 0:
        right = np.mean(np.argmax(network(digits.test_images), 1) == digits.test_labels)
        print(f"{stf.size()} ranks: accuracy {right:.1%} on {TEST_IMAGES} images that it has not seen")
        print("the same, one process:", flush=True)
        alone = make_network(seed=0)
        train_alone(alone, digits, options)
        pairs = zip(network.get_weights(), alone.get_weights(), strict=True)
        difference = max(float(np.max(np.abs(a - b))) for a, b in pairs)
        print(f"largest difference of a weight from one process: {difference:.1e}")
    stf.shutdown()


if __name__ == "__main__":
    main()
