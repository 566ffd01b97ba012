"""A small problem for tests of Keras's door, cut into a part for each rank, and the same in one process."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import shoal
import shoal.keras
from shoal.keras import DistributedOptimizer

FEATURES, CLASSES = 12, 3
# Of each rank in a step.
ROWS = 8
STEPS = 6

Optimizer = Callable[[], Any]


def values(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def problem(ranks: int, steps: int = STEPS) -> tuple[Any, Any]:
    """Global batches one after the other; each has the ranks' parts one after the other."""
    random = np.random.default_rng(3)
    x = random.normal(size=(steps * ranks * ROWS, FEATURES)).astype("float32")
    return x, (x[:, :CLASSES] @ random.normal(size=(CLASSES, CLASSES))).argmax(1).astype("int32")


def part(array: Any, rank: int, ranks: int) -> Any:
    rows = array.reshape(-1, ranks, ROWS, *array.shape[1:])[:, rank]
    return rows.reshape(-1, *array.shape[1:])


def dense_model(seed: int = 7) -> Any:
    """Smooth everywhere, so that a last bit stays a last bit."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(16, activation="gelu", name="first"),
            keras.layers.Dense(CLASSES, name="second"),
        ],
        name="small",
    )


def compiled(model: Any, optimizer: Any, **options: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def fit(model: Any, x: Any, y: Any, rows: int, **options: Any) -> Any:
    return model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, **{"epochs": 2, **options})


def trained_together(optimizer: Optimizer, make: Callable[[], Any] = dense_model, **options: Any) -> Any:
    rank, size = shoal.rank(), shoal.size()
    x, y = problem(size)
    model = compiled(make(), DistributedOptimizer(optimizer()), **options)
    fit(model, part(x, rank, size), part(y, rank, size), ROWS)
    return model


def trained_alone(optimizer: Optimizer, make: Callable[[], Any] = dense_model, **options: Any) -> Any:
    """On the same global batches, in this process alone."""
    x, y = problem(shoal.size())
    model = compiled(make(), optimizer(), **options)
    fit(model, x, y, shoal.size() * ROWS)
    return model


def difference(ours: Any, theirs: Any) -> float:
    """The largest of all weights."""
    pairs = zip(values(ours.trainable_variables), values(theirs.trainable_variables), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def are_alike(model: Any) -> bool:
    """Whether all ranks have the same bits."""
    return all(
        np.array_equal(shoal.allreduce(value, "min"), shoal.allreduce(value, "max"))
        for value in values(model.trainable_variables)
    )


def check(optimizer: Optimizer, make: Callable[[], Any] = dense_model, **options: Any) -> Any:
    """Trained together it is what it would be alone, on every rank."""
    together = trained_together(optimizer, make, **options)
    assert are_alike(together)
    far = difference(together, trained_alone(optimizer, make, **options))
    assert far < 1e-5, far
    assert difference(together, make()) > 1e-3
    return together
