"""Batch norm whose statistics are over the samples of all members."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..collectives import Sum
from .mpi_ops import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """As Keras's. A member may have fewer samples than another. `fused` is taken, and has no meaning in Keras 3."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        if mask is not None:
            raise ValueError("SyncBatchNormalization takes no masked samples")
        axes = [axis for axis in range(len(inputs.shape)) if axis != self.axis % len(inputs.shape)]
        values = tf.cast(inputs, tf.float32)
        own = tf.cast(tf.size(values) / tf.shape(values)[self.axis], tf.float32)
        together = allreduce(tf.concat([tf.reduce_sum(values, axes), [own]], 0), op=Sum)
        sums, count = together[:-1], together[-1]
        mean = sums / count
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        centred = values - tf.reshape(mean, shape)
        variance = allreduce(tf.reduce_sum(tf.square(centred), axes), op=Sum) / count
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
