"""What wraps an optimizer of version 1 of TensorFlow, ``tf.compat.v1.train.Optimizer``: its state is that of the wrapped one."""

from typing import Any

import tensorflow as tf


class Wrapper(tf.compat.v1.train.Optimizer):
    """The base of optimizers that change what another one is given, or what it has done."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """That of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)
