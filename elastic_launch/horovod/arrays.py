"""Collectives on numpy arrays that are waited for and change nothing that is given, for the faces of TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..trainer.ring.tcp.buffers import Array, readable
from . import collectives, world


def reduce_all(
    arrays: Sequence[Any], op: int, prescale_factor: float, postscale_factor: float, name: str | None
) -> list[Array]:
    """Those of the same place in the list are joined; all are under way at once."""
    engine = world.current().engine
    base = name or engine.name("reduction")
    started, factors = [], []
    for index, given in enumerate(arrays):
        array = scaled(np.array(given), prescale_factor)
        operation, factor = collectives.ring_operation(op, readable(array).dtype, engine.size)
        started.append(
            collectives.start(engine, "allreduce", array, array.shape, f"{base}.{index}", operation=operation)
        )
        factors.append(postscale_factor * factor)
    return [scaled(each.wait().memory, factor) for each, factor in zip(started, factors, strict=True)]


def gather_all(arrays: Sequence[Any], name: str | None) -> list[Array]:
    """Everybody's rows, by rank, in one array for each place of the list."""
    engine = world.current().engine
    base = name or engine.name("gather")
    given = [np.ascontiguousarray(array) for array in arrays]
    started = [
        collectives.start(engine, "allgather", array, np.shape(each), f"{base}.{index}")
        for index, (array, each) in enumerate(zip(given, arrays, strict=True))
    ]
    return [_shaped(each.wait(), array) for each, array in zip(started, given, strict=True)]


def give_all(arrays: Sequence[Any], root_rank: int, name: str | None) -> list[Array]:
    """Those of the rank `root_rank`."""
    engine = world.current().engine
    base = name or engine.name("broadcast")
    copies = [np.array(array) for array in arrays]
    started = [
        collectives.start(engine, "broadcast", array, array.shape, f"{base}.{index}", root=root_rank)
        for index, array in enumerate(copies)
    ]
    for each in started:
        each.wait()
    return copies


def exchange(array: Any, splits: Sequence[int] | None, name: str | None) -> tuple[Array, Array]:
    """An alltoall: what came, and how many rows from each rank."""
    engine = world.current().engine
    given = np.ascontiguousarray(array)
    parts = collectives.splits_of(splits, given.shape[0] if np.ndim(array) else 0, engine.size)
    operation = collectives.start(engine, "alltoall", given, np.shape(array), name, splits=parts).wait()
    return _shaped(operation, given), np.array(operation.splits, np.int32)


def scatter_all(
    arrays: Sequence[Any], op: int, prescale_factor: float, postscale_factor: float, name: str | None
) -> list[Array]:
    """Reducescatters."""
    if op not in (collectives.Sum, collectives.Average):
        raise ValueError("reducescatter takes op=Sum or Average")
    engine = world.current().engine
    base = name or engine.name("scatter")
    started = []
    for index, given in enumerate(arrays):
        array = scaled(np.array(given), prescale_factor)
        operation, factor = collectives.ring_operation(op, readable(array).dtype, engine.size)
        asked = collectives.start(
            engine, "reducescatter", array, np.shape(given), f"{base}.{index}", operation=operation
        )
        started.append((asked, array, factor))
    return [scaled(_shaped(asked.wait(), array), postscale_factor * factor) for asked, array, factor in started]


def scaled(array: Array, factor: float) -> Array:
    """Integers are scaled as float64, and lose what is behind the point. A number that is no array stays one of its type."""
    if factor == 1.0:
        return array
    if array.dtype.kind in "iub":
        return np.asarray(array.astype(np.float64) * factor).astype(array.dtype)
    return np.asarray(array * array.dtype.type(factor))


def _shaped(operation: Any, like: Array) -> Array:
    """The flat result, which of bfloat16 is the bits."""
    elements: Array = operation.elements
    if elements.dtype != like.dtype:
        elements = elements.view(like.dtype)
    shaped: Array = elements.reshape(operation.shape)
    return shaped
