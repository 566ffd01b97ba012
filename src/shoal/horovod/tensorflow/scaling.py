"""Scaling before and after a sum, as Horovod has it: integers in float64, cut toward zero, and 16-bit tensors in float32."""

from typing import Any

import tensorflow as tf


def scaled(tensor: Any, factor: float) -> Any:
    """The tensor times the factor: itself if that is 1. Gradients flow through it where the dtype has any."""
    if factor == 1.0:
        return tensor
    dtype = tensor.dtype
    if dtype in (tf.float32, tf.float64):
        return tensor * tf.constant(factor, dtype)
    wide = tf.float32 if dtype.is_floating else tf.float64
    return tf.cast(tf.cast(tensor, wide) * tf.constant(factor, wide), dtype)
