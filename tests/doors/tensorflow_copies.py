"""How often tensors of 25 MB are copied as a whole on their way, on every rank. Needs copies.c, loaded before everything else."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import shoal
import shoal.tensorflow

ELEMENTS = 25_000_000 // 4
# Each is of so many bytes that a copy counts.
GRADIENTS = 10


def count() -> dict[str, float]:
    """By what is done: copies of its bytes. The first time, when memory is taken, does not count."""
    shoal.init()
    array = np.ones(ELEMENTS, np.float32)
    tensor, variable = tf.ones(ELEMENTS), tf.Variable(tf.ones(ELEMENTS))
    weights = [tf.Variable(tf.ones(ELEMENTS // GRADIENTS)) for _ in range(GRADIENTS)]

    @tf.function
    def in_a_function() -> Any:
        return tf.reduce_sum(shoal.tensorflow.allreduce(variable * 2.0))

    @tf.function
    def gradients() -> Any:
        with shoal.tensorflow.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(weight * weight) for weight in weights])
        return [tf.reduce_sum(gradient) for gradient in tape.gradient(loss, weights)]

    gradients()  # the order of gradients is known after the first step
    counted = {
        "a copy": _copies(lambda: ctypes.memmove((ctypes.c_char * array.nbytes)(), array.ctypes.data, array.nbytes)),
        "array API": _copies(lambda: shoal.allreduce_(array)),
        "eager": _copies(lambda: shoal.tensorflow.allreduce(tensor)),
        "in a function": _copies(in_a_function),
        "gradients": _copies(gradients),
    }
    shoal.shutdown()
    return counted


def _copies(run: Callable[[], Any]) -> float:
    bytes_copied = ctypes.CDLL(None).shoal_copied_bytes
    bytes_copied.restype = ctypes.c_size_t
    run()
    before: int = bytes_copied()
    run()
    return (bytes_copied() - before) / (ELEMENTS * np.dtype(np.float32).itemsize)
