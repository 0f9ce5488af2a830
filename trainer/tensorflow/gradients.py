"""A step's gradients, as TensorFlow has them, averaged over the members; in eager code and inside of `tf.function`.

Inside of a graph one Python function takes the whole list, so that all members reduce in one order, whatever the order
in which TensorFlow would run separate ones. XLA cannot compile it: use `jit_compile=False`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from ..ring.slices import Slices
from .failures import keeping
from .tensors import on_cpu, to_tensor

Reduce: TypeAlias = Callable[[list[Any], bool], list[Any]]
"""Sums gradients over the members: tensors, `Slices` and None; as `sum_gradients` of a ring, with its `all_alike`.

It is called each time that the gradients are needed, inside of a graph on a thread of TensorFlow's.
"""


def average_gradients(
    gradients: Any, reduce: Reduce, takes_gpu_tensors: bool = False, resources: Sequence[Any] = ()
) -> Any:
    """`gradients` in the same structure, each one reduced: a tensor, a `tf.IndexedSlices`, or None.

    Eagerly, what is None here and not elsewhere comes back as a tensor, and slices do where another member has a tensor.
    Inside of a graph None stays None, and an error of `reduce` comes out as TensorFlow's: `failures.original` knows the one
    that was raised. `reduce` gets tensors in the CPU's memory, unless it takes others.

    `resources` are the handles of variables that nothing in the graph may change before `reduce` has returned. What depends
    on the gradients waits for them anyway; a step counter, or weight decay, would not.
    """
    leaves = tf.nest.flatten(gradients)
    place = _as_it_is if takes_gpu_tensors else on_cpu
    if tf.executing_eagerly():
        found = _reduced(leaves, reduce, False, place)
    else:
        found = _reduced_in_graph(leaves, reduce, place, resources)
    return tf.nest.pack_sequence_as(gradients, found)


def _reduced(leaves: list[Any], reduce: Reduce, all_alike: bool, place: Callable[[Any], Any]) -> list[Any]:
    given: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, tf.IndexedSlices):
            given.append(Slices(on_cpu(leaf.values), on_cpu(leaf.indices)))
        else:
            given.append(None if leaf is None else place(leaf))
    return [_like(leaf, found) for leaf, found in zip(leaves, reduce(given, all_alike), strict=True)]


def _reduced_in_graph(
    leaves: list[Any], reduce: Reduce, place: Callable[[Any], Any], resources: Sequence[Any]
) -> list[Any]:
    inputs = _parts(leaves)
    if not inputs:
        return leaves

    def call(*values: Any) -> list[Any]:
        return _parts(_reduced(_with_parts(leaves, values[: len(inputs)]), reduce, True, place))

    # TensorFlow keeps the order of operations that have a resource in common.
    kinds = [each.dtype for each in inputs]
    outputs = tf.py_function(keeping(call), [*inputs, *resources], kinds, name="average_gradients")
    found = _with_parts(leaves, outputs)
    for leaf, result in zip(leaves, found, strict=True):
        if isinstance(leaf, tf.IndexedSlices):
            result.values.set_shape([None, *leaf.values.shape[1:]])
            result.indices.set_shape([None])
        elif leaf is not None:
            result.set_shape(leaf.shape)
    return found


def _parts(leaves: list[Any]) -> list[Any]:
    """The tensors that they are made of."""
    found = []
    for leaf in leaves:
        if isinstance(leaf, tf.IndexedSlices):
            found += [leaf.values, leaf.indices]
        elif leaf is not None:
            found.append(leaf)
    return found


def _with_parts(leaves: list[Any], parts: Sequence[Any]) -> list[Any]:
    """The same, made of other tensors."""
    remaining = iter(parts)
    found: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, tf.IndexedSlices):
            found.append(tf.IndexedSlices(next(remaining), next(remaining), leaf.dense_shape))
        else:
            found.append(None if leaf is None else next(remaining))
    return found


def _like(leaf: Any, found: Any) -> Any:
    """What was reduced, as what `leaf` is; as what the others have, if that is another thing."""
    if isinstance(found, Slices):
        is_slices = isinstance(leaf, tf.IndexedSlices)
        indices = _tensor(found.indices)
        if is_slices:
            indices = tf.cast(indices, leaf.indices.dtype)
        return tf.IndexedSlices(_tensor(found.values), indices, leaf.dense_shape if is_slices else None)
    return None if found is None else _tensor(found)


def _tensor(found: Any) -> Any:
    return found if tf.is_tensor(found) else to_tensor(found)


def _as_it_is(tensor: Any) -> Any:
    return tensor
