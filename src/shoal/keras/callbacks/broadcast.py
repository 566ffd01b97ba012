"""All ranks begin with the same model."""

import warnings
from typing import Any

import keras

from shoal.job.groups import Group, world
from shoal.keras.distributed import check_averages, check_outermost
from shoal.keras.variables import broadcast_variables


class BroadcastVariablesCallback(keras.callbacks.Callback):
    """When training begins, gives all ranks the weights of the model and the state of the optimizer that rank ``root`` has.

    Also what was loaded from a file on that rank: weights, moments, the learning rate, the number of steps made. Not the state
    of random generators, so each rank's Dropout stays its own. Layers that have no weights yet in a model that has been built are
    taken for ones that it does not use, with a warning.

    Arguments:
        root: a rank of the job that is a member of the group.
        group: the ranks that train the model; None: all.

    In ``on_train_begin`` raises ValueError for a model that has no weights yet, and one whose distributed optimizer is inside another
    one, and what ``broadcast_variables`` raises; after the
    first epoch RuntimeError, if the model was compiled before its optimizer was a distributed one, or if a layer got its weights
    after the broadcast.
    """

    def __init__(self, root: int = 0, group: Group | None = None) -> None:
        super().__init__()
        self._root = root
        self._group = group
        self._not_built: list[Any] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        check_outermost(model)
        self._not_built = [layer for layer in model._flatten_layers(include_self=False) if not layer.built]
        if not model.built or (self._not_built and not model.weights):
            raise ValueError(
                f"the model {model.name!r} has no weights yet that could be broadcast: begin it with a keras.Input, or call it "
                "on a batch, or model.build(input_shape), before fit"
            )
        if self._not_built and world().rank == self._root:
            warnings.warn(
                f"{_named(self._not_built)} of the model {model.name!r} had no weights that could be broadcast, as nothing has called "
                "them: if the model uses them in training, call it on a batch before fit",
                stacklevel=2,
            )
        optimizer = model.optimizer
        # On TensorFlow, Keras makes its variables in the first step.
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        state = [] if optimizer is None else optimizer.variables
        broadcast_variables([*model.weights, *state], self._root, self._group)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        check_averages(self.model)
        late = [layer for layer in self._not_built if layer.built and layer.weights]
        if late:
            raise RuntimeError(
                f"{_named(late)} of the model {self.model.name!r} got weights after the broadcast, so each rank has others: call the "
                "model on a batch before fit"
            )


def _named(layers: list[Any]) -> str:
    names = ", ".join(repr(layer.name) for layer in layers)
    return f"the layer {names}" if len(layers) == 1 else f"the layers {names}"
