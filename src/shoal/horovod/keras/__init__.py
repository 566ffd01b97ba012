"""Horovod's API for Keras: ``import shoal.horovod.keras as hvd``.

Horovod has it twice, for Keras and for TensorFlow's Keras, which are one library now: this is
``shoal.horovod.tensorflow.keras``, for Keras on TensorFlow.
"""

from shoal.horovod.tensorflow import keras as _of_tensorflow
from shoal.horovod.tensorflow.keras import *  # noqa: F403

__all__ = list(_of_tensorflow.__all__)
