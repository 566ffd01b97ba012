"""Jobs of Keras's door that end in the middle. test_keras_ends.py runs them."""

import os
import signal
from typing import Any

import keras
import keras_models as models

import shoal
from shoal.keras import DistributedOptimizer


class Ends(keras.callbacks.Callback):
    """Rank 1 ends as it is told to, in the middle of an epoch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if shoal.rank() != 1 or batch != models.STEPS // 2:
            return
        if self._how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "exits":
            os._exit(3)
        if self._how == "raises":
            raise ArithmeticError("the loss is infinite")


def train(how: str) -> None:
    shoal.init()
    x, y = models.problem(shoal.size())
    model = models.compiled(models.dense_model(), DistributedOptimizer(keras.optimizers.SGD(0.1)))
    mine = (models.part(each, shoal.rank(), shoal.size()) for each in (x, y))
    models.fit(model, *mine, models.ROWS, callbacks=[Ends(how)])


def lose_a_gradient(gains: bool) -> None:
    """The ranks have the same gradients at first; then one of them has one less than the others, or one more."""
    shoal.init()
    variables = [keras.Variable(keras.ops.zeros(4), name=name) for name in ("weights", "sometimes")]
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
    both, one = [keras.ops.ones(4), keras.ops.ones(4)], [keras.ops.ones(4), None]
    optimizer.apply(one if gains else both, variables)
    optimizer.apply(both if (shoal.rank() == 0) != gains else one, variables)
    models.values(variables)


def train_other_shapes() -> None:
    """The ranks agree on their variables at first; then one makes its gradient another shape."""
    shoal.init()
    variable = keras.Variable(keras.ops.zeros(4), name="weights")
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.apply([keras.ops.ones(4)], [variable])
    optimizer.apply([keras.ops.ones(4 if shoal.rank() == 0 else 5)], [variable])
    models.values([variable])
