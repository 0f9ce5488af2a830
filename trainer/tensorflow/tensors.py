"""Tensors to and from the memory that the ring works on, without a copy where TensorFlow allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ..ring.tcp.buffers import ALIGNMENT, Array


def on_cpu(tensor: Any) -> Any:
    """An eager tensor in the CPU's memory: itself, if it is there."""
    if is_on_gpu(tensor):
        with tf.device("CPU:0"):
            return tf.identity(tensor)
    return tensor


def is_on_gpu(tensor: Any) -> bool:
    return "GPU" in tensor.device


def to_tensor(array: Array) -> Any:
    """A tensor over the array's memory, which must not change any more; over a copy of it if it is not aligned or read-only."""
    if array.ctypes.data % ALIGNMENT or not array.flags.c_contiguous or not array.flags.writeable or not array.size:
        return tf.constant(array)
    if array.dtype.name != "bfloat16":
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    # numpy's DLPack does not know it; a change of type shares the memory.
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(array.view(np.uint16).__dlpack__()), tf.bfloat16)
