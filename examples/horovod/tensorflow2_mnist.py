"""A script of Horovod's kind for TensorFlow: a small convolutional network learns handwritten digits in a loop of its own.

    shoal run -n 4 examples/horovod/tensorflow2_mnist.py --epochs 10

Only the import differs from a script for Horovod. The digits are those that come with scikit-learn. Needs the packages tensorflow
and scikit-learn.
"""

import argparse
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import shoal.horovod.tensorflow as hvd


def load() -> tuple[Any, Any, Any, Any]:
    """Images and labels for training, and for testing: every fifth image."""
    digits = load_digits()
    images, labels = (digits.images[..., None] / 16).astype(np.float32), digits.target.astype(np.int64)
    tests = np.arange(len(labels)) % 5 == 0
    return images[~tests], labels[~tests], images[tests], labels[tests]


def make_model() -> Any:
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="of a rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    args = parser.parse_args()

    hvd.init()
    tf.keras.utils.set_random_seed(42)
    train_images, train_labels, test_images, test_labels = load()
    # The same number of batches on every rank: each takes as many images as the shortest part has.
    each = len(train_labels) // hvd.size()
    mine = slice(hvd.rank() * each, (hvd.rank() + 1) * each)
    dataset = tf.data.Dataset.from_tensor_slices((train_images[mine], train_labels[mine]))
    dataset = dataset.shuffle(each, seed=42).batch(args.batch_size)

    model = make_model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # With more ranks the batch of all is larger, and so may the steps be.
    optimizer = tf.keras.optimizers.Adam(args.lr * hvd.size())

    @tf.function
    def training_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))
        compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss_value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss_value

    is_first = True
    for epoch in range(args.epochs):
        for images, labels in dataset:
            loss_value = training_step(images, labels)
            if is_first:
                # After the first step, when the optimizer has its variables.
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(optimizer.variables, root_rank=0)
                is_first = False
        right = tf.reduce_mean(tf.cast(tf.argmax(model(test_images), 1) == test_labels, tf.float32))
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {float(loss_value):.4f}, accuracy {float(right):.2%}", flush=True)


if __name__ == "__main__":
    main()
