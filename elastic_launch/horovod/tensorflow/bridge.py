"""From TensorFlow to numpy arrays and back: at once where it is eager, as a step of the graph inside a `tf.function`.

The steps of a graph run in the order in which the function names them, as all that has side effects does; so names that are
counted as they run are the same on all members, also on those that traced their function later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .. import world
from ..common.exceptions import HorovodInternalError


def on_arrays(
    call: Callable[..., Sequence[Any]], inputs: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[Any]
) -> list[Any]:
    """Tensors of what `call` makes of the inputs as arrays; `dtypes` and `shapes` are what it gives."""
    tensors = [tf.convert_to_tensor(each) for each in inputs]
    if all(hasattr(tensor, "numpy") for tensor in tensors) and tf.executing_eagerly():
        found = call(*[tensor.numpy() for tensor in tensors])
        return [tf.constant(each, dtype=dtype) for each, dtype in zip(found, dtypes, strict=True)]
    results = tf.numpy_function(lambda *arrays: [np.asarray(each) for each in call(*arrays)], tensors, list(dtypes))
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return results


def array_of(variable: Any) -> Any:
    """Of a TensorFlow or Keras variable, or a tensor."""
    return np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable)


def translated(error: Any) -> Any:
    """What a step of a graph failed with: TensorFlow passes on only the text of an error."""
    if world.is_initialized() and world.current().is_broken:
        return HorovodInternalError(str(error.message))
    return error
