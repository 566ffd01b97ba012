"""Rows without elements, which Horovod moves too: of each row one element travels in their place."""

from typing import Any

import tensorflow as tf


def have_elements(tensor: Any) -> bool:
    """False if it is known that the rows of the tensor have none."""
    shape = tensor.shape
    return shape.rank is None or shape.rank == 0 or shape[1:].num_elements() != 0


def carried(tensor: Any) -> Any:
    """What travels: the tensor, or one element for each of its rows."""
    if have_elements(tensor):
        return tensor
    return tf.zeros([tf.shape(tensor)[0], *[1] * (tensor.shape.rank - 1)], tensor.dtype)


def as_rows_of(tensor: Any, received: Any) -> Any:
    """What has come of ``carried(tensor)``, in rows as the tensor has them."""
    if have_elements(tensor):
        return received
    return tf.zeros([tf.shape(received)[0], *tensor.shape[1:]], tensor.dtype)
