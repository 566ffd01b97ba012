"""Batch normalisation over the batches of all ranks."""

from typing import Any

import tensorflow as tf

from shoal.job.groups import Group
from shoal.tensorflow.collectives import allreduce

IS_KERAS_3 = hasattr(tf.keras, "ops")


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """``tf.keras.layers.BatchNormalization`` whose mean and variance in training are those of all ranks' batches together.

    A rank's batch counts by its size. Arguments as of the layer, and ``group``: the ranks that take part; None: all. It is saved as
    the plain layer, so models that have it load without Shoal.

    Raises ValueError for what the layer of Keras 2 has and this has not: ``fused=True``, ``renorm``, ``virtual_batch_size``.
    """

    def __init__(self, *arguments: Any, group: Group | None = None, **options: Any) -> None:
        options.pop("synchronized", None)
        for name in ("fused", "renorm", "virtual_batch_size"):
            if options.get(name):
                raise ValueError(f"SyncBatchNormalization has no {name}: leave it out")
        if not IS_KERAS_3:
            options["fused"] = False  # which would not ask for the mean and variance
        super().__init__(*arguments, **options)
        self._group = group

    def get_config(self) -> Any:
        if self._group is not None:
            raise NotImplementedError("a SyncBatchNormalization with a group cannot be copied or saved")
        config = super().get_config()
        config.pop("fused", None)
        return config

    def _moments(self, inputs: Any, *rest: Any, **options: Any) -> tuple[Any, Any]:
        if IS_KERAS_3:  # (inputs, mask)
            given = dict(zip(("mask",), rest, strict=False), **options)
            axes = list(self._reduction_axes)
        else:  # (inputs, reduction_axes, keep_dims, mask=None)
            given = dict(zip(("reduction_axes", "keep_dims", "mask"), rest, strict=False), **options)
            axes = list(given["reduction_axes"])
        mask = given.get("mask")
        x = tf.cast(inputs, tf.float32) if inputs.dtype in (tf.float16, tf.bfloat16) else tf.convert_to_tensor(inputs)
        weights = tf.ones_like(x) if mask is None else _broadcast_mask(mask, x)
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        count, total = tf.unstack(self._sum([tf.reduce_sum(each, axes) for each in (weights, x * weights)]))
        count = tf.maximum(count, 1.0)
        mean = total / count
        # About the mean of all: a difference of two large sums would lose what a small variance is.
        distance = tf.square(x - tf.reshape(mean, shape)) * weights
        variance = tf.unstack(self._sum([tf.reduce_sum(distance, axes)]))[0] / count
        if given.get("keep_dims"):
            mean, variance = tf.reshape(mean, shape), tf.reshape(variance, shape)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def _sum(self, own: list[Any]) -> Any:
        return allreduce(tf.stack(own), "sum", group=self._group)


def _broadcast_mask(mask: Any, x: Any) -> Any:
    weights = tf.cast(mask, x.dtype)
    return tf.broadcast_to(
        tf.reshape(weights, tf.concat([tf.shape(weights), [1] * (len(x.shape) - len(weights.shape))], 0)), tf.shape(x)
    )


# What is saved names the layer by these.
_plain = tf.keras.layers.BatchNormalization
SyncBatchNormalization.__name__ = _plain.__name__
SyncBatchNormalization.__qualname__ = _plain.__qualname__
SyncBatchNormalization.__module__ = _plain.__module__
