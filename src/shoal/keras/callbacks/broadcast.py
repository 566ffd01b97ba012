"""All ranks begin with the same model."""

from typing import Any

import keras

from shoal.job.groups import Group
from shoal.keras.distributed import check_averages
from shoal.keras.variables import broadcast_variables


class BroadcastVariablesCallback(keras.callbacks.Callback):
    """When training begins, gives all ranks the weights of the model and the state of the optimizer that rank ``root`` has.

    Also what was loaded from a file on that rank: weights, moments, the learning rate, the number of steps made. Not the state
    of random generators, so each rank's Dropout stays its own.

    Arguments:
        root: a rank of the job that is a member of the group.
        group: the ranks that train the model; None: all.

    In ``on_train_begin`` raises ValueError for a model that has no weights yet, and what ``broadcast_variables`` raises; after the
    first epoch RuntimeError, if the model was compiled before its optimizer was a distributed one.
    """

    def __init__(self, root: int = 0, group: Group | None = None) -> None:
        super().__init__()
        self._root = root
        self._group = group

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        if not all(layer.built for layer in (model, *model._flatten_layers())):
            raise ValueError(
                f"the model {model.name!r} has no weights yet that could be broadcast: begin it with a keras.Input, or call it "
                "on a batch, or model.build(input_shape), before fit"
            )
        optimizer = model.optimizer
        # On TensorFlow, Keras makes its variables in the first step.
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        state = [] if optimizer is None else optimizer.variables
        broadcast_variables([*model.weights, *state], self._root, self._group)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        check_averages(self.model)
