"""Scaling before and after a sum, as Horovod has it: integers in float64, cut toward zero, and 16-bit tensors in float32."""

from typing import Any

import tensorflow as tf

from shoal.horovod.common.averages import is_divided_after
from shoal.horovod.common.operators import ReduceOp
from shoal.job.groups import Group
from shoal.tensorflow import traced


def scaled(tensor: Any, factor: Any) -> Any:
    """The tensor times the factor, a number, also of NumPy's, or a scalar tensor: itself if that is the number 1. Gradients flow
    through it where the dtype has any."""
    if not tf.is_tensor(factor):
        if float(factor) == 1.0:
            return tensor
        factor = tf.constant(float(factor), tf.float64)
    dtype = tensor.dtype
    if dtype in (tf.float32, tf.float64):
        return tensor * tf.cast(factor, dtype)
    wide = tf.float32 if dtype.is_floating else tf.float64
    return tf.cast(tf.cast(tensor, wide) * tf.cast(factor, wide), dtype)


def scaled_after(tensor: Any, op: ReduceOp, group: Group, postscale_factor: float) -> Any:
    """The result of ``operator_for(op, ...)`` as the program gets it. In a graph by the number of ranks when it runs."""
    if not is_divided_after(op, tensor.dtype.is_floating):
        return scaled(tensor, postscale_factor)
    members = traced.members("allreduce", group)
    if isinstance(members, int):
        return scaled(tensor, postscale_factor / members)
    factor = tf.constant(postscale_factor, tf.float64) / tf.cast(members, tf.float64)
    # Large integers are none of float64's.
    return tf.where(tf.equal(factor, 1.0), tensor, scaled(tensor, factor))
