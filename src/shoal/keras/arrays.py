"""Values of Keras's as arrays. Of Keras 2 too, for Horovod's callbacks, which run on it."""

from typing import Any

import keras
import numpy as np


def to_numpy(value: Any) -> Any:
    """An array of ``value``: a tensor of the backend, a variable, a number."""
    return np.asarray(keras.ops.convert_to_numpy(value) if hasattr(keras, "ops") else value)
