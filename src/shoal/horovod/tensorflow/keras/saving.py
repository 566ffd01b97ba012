"""Models from files, whose optimizers are distributed ones again."""

from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from types import FunctionType
from typing import Any

import tensorflow as tf

from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.keras.optimizer import DistributedOptimizer
from shoal.horovod.tensorflow.keras_optimizer import is_distributed


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """``tf.keras.models.load_model``, with the model's optimizer and its state wrapped by ``DistributedOptimizer``.

    Whoever calls it reads the file: every rank, or rank 0 alone, if the others make the same model and
    ``callbacks.BroadcastGlobalVariablesCallback`` gives them its variables.

    Arguments:
        filepath: as for ``tf.keras.models.load_model``.
        custom_optimizers: classes of optimizers of the program's own.
        custom_objects: names in the file → classes and functions. For an optimizer's name a function may stand that makes a
            distributed one: ``{"Mine": lambda **config: hvd.DistributedOptimizer(Mine(**config), op=hvd.Sum)}``.
        compression: how gradients travel, unless such a function has made the optimizer.
        legacy_opts: taken, and means nothing: whatever optimizer the file has is wrapped.

    Raises ValueError for a model that was saved without an optimizer, and what Keras and ``DistributedOptimizer`` raise.
    """
    objects: dict[str, Any] = {each.__name__: each for each in custom_optimizers or ()}
    objects |= {
        name: _Maker(value) if isinstance(value, FunctionType) else value
        for name, value in (custom_objects or {}).items()
    }
    model = tf.keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"the model in {filepath} has no optimizer: load it with tf.keras.models.load_model, and compile it with a "
            "DistributedOptimizer"
        )
    if not is_distributed(model.optimizer):
        DistributedOptimizer(model.optimizer, compression=compression)
    return model


class _Maker:
    """A function that Keras may call for a class: it makes what a file says from its configuration, else is the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function(*arguments, **options)

    def from_config(self, config: dict[str, Any]) -> Any:
        """What the function makes of a configuration."""
        return self._function(**config)
