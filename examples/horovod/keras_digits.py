"""A script of Horovod's kind for Keras: a small convolutional network learns handwritten digits with ``model.fit``.

    shoal run -n 4 examples/horovod/keras_digits.py --epochs 10

Only the import differs from a script for Horovod. The digits are those that come with scikit-learn. Needs the packages tensorflow
and scikit-learn.
"""

import argparse
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import shoal.horovod.keras as hvd


def load() -> tuple[Any, Any, Any, Any]:
    """Images and labels for training, and for testing: every fifth image."""
    digits = load_digits()
    images, labels = (digits.images[..., None] / 16).astype(np.float32), digits.target.astype(np.int64)
    tests = np.arange(len(labels)) % 5 == 0
    return images[~tests], labels[~tests], images[tests], labels[tests]


def make_model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="of a rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    parser.add_argument("--save", metavar="FILE.keras", help="where rank 0 keeps the model of the best epoch")
    args = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(42)
    train_images, train_labels, test_images, test_labels = load()
    # The same number of batches on every rank: each takes as many images as the shortest part has.
    each = len(train_labels) // hvd.size()
    mine = slice(hvd.rank() * each, (hvd.rank() + 1) * each)

    # With more ranks the batch of all is larger, and so may the steps be.
    lr = args.lr * hvd.size()
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lr, momentum=0.9), compression=compression)
    model = make_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # On GPUs XLA cannot compile what goes to other ranks yet.
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=lr, warmup_epochs=2),
    ]
    if args.save and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(args.save, monitor="loss", save_best_only=True))
    model.fit(
        train_images[mine],
        train_labels[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    score = model.evaluate(test_images, test_labels, verbose=0)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: test loss {score[0]:.4f}, accuracy {score[1]:.2%}", flush=True)


if __name__ == "__main__":
    main()
