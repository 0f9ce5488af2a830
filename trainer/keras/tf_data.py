"""A `tf.data.Dataset` as a source: a pass is an iterator over it, in which a worker that joins skips to the job's position.

A seeded shuffle gives another order in each iterator of a process, the same in all processes for the first, the second, and
so on. So pass number p is always the iterator that was made as number p.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from .sources import Source, cut, keep_last, rows_of

_END = object()


class TfDataSource(Source):
    """Each element of `dataset` is a global batch. `original` is the user's own, which `dataset` may be made from.

    `fixed`: all passes must be the same, so that one can be begun again.
    """

    def __init__(self, dataset: tf.data.Dataset, original: tf.data.Dataset, fixed: bool) -> None:
        _check_shuffles(original, fixed)
        self._fixed = fixed
        self._dataset = dataset.prefetch(tf.data.AUTOTUNE)
        self._made = 0
        self._iterator: Iterator[Any] | None = None
        self._at = (-1, 0)
        self._kept: dict[tuple[int, int], Any] = {}
        cardinality = int(dataset.cardinality())
        self.is_endless = cardinality == tf.data.INFINITE_CARDINALITY
        self.batches: int | None = cardinality if cardinality >= 0 else None

    def has(self, data_pass: int, number: int) -> bool:
        if self.batches is not None:
            return number < self.batches
        return self.is_endless or self._get(data_pass, number) is not _END

    def rows(self, data_pass: int, number: int) -> int:
        return rows_of(self._get(data_pass, number))

    def part(self, data_pass: int, number: int, start: int, stop: int) -> Any:
        batch = self._get(data_pass, number)
        if any(isinstance(leaf, tf.SparseTensor) for leaf in keras.tree.flatten(batch)):
            return keras.tree.map_structure(lambda value: _cut_any(value, start, stop), batch)
        return cut(batch, start, stop)

    def spec(self) -> Any:
        def one(spec: Any) -> Any:
            if spec.shape.rank is None:
                raise UsageError(
                    "the tf.data.Dataset does not know the shapes of its elements: say output_signature= where it is made, or "
                    "set them with tf.ensure_shape in a map"
                )
            if spec.shape.rank == 0:
                raise UsageError("the tf.data.Dataset gives single samples: end it with .batch(...)")
            kind = keras.backend.standardize_dtype(spec.dtype)
            if isinstance(spec, tf.RaggedTensorSpec):
                return keras.KerasTensor((None, *spec.shape[1:]), kind, ragged=True, ragged_rank=spec.ragged_rank)
            return keras.KerasTensor((None, *spec.shape[1:]), kind, sparse=isinstance(spec, tf.SparseTensorSpec))

        return keras.tree.map_structure(one, self._dataset.element_spec)

    def _get(self, data_pass: int, number: int) -> Any:
        key = (data_pass, number)
        if key in self._kept:
            return self._kept[key]
        if self._iterator is None or self._at[0] != data_pass or self._at[1] > number:
            self._open(data_pass, number)
        assert self._iterator is not None
        while self._at[1] <= number:
            batch = next(self._iterator, _END)
            keep_last(self._kept, self._at, batch if batch is _END else _for_backend(batch))
            self._at = (data_pass, self._at[1] + 1)
        return self._kept[key]

    def _open(self, data_pass: int, number: int) -> None:
        if not self._fixed and data_pass < self._made:
            raise RuntimeError(f"pass {data_pass} of the data was asked for after pass {self._made - 1}")
        while not self._fixed and self._made < data_pass:
            iter(self._dataset)
            self._made += 1
        self._iterator = iter(self._dataset.skip(number) if number else self._dataset)
        self._made += 1
        self._at = (data_pass, number)


def _for_backend(batch: Any) -> Any:
    if keras.backend.backend() == "tensorflow":
        return batch
    return keras.tree.map_structure(lambda value: np.asarray(value), batch)


def _cut_any(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, tf.SparseTensor):
        size = [stop - start, *value.shape[1:]]
        return tf.sparse.slice(value, [start] + [0] * (len(size) - 1), size)
    return value[start:stop]


def _check_shuffles(dataset: Any, fixed: bool) -> None:
    """Raise `UsageError` if members would see their batches in different orders."""
    pending, seen = [dataset], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        pending += each._inputs()
        if type(each).__name__.lstrip("_") not in ("ShuffleDataset", "RandomDataset"):
            continue
        if all(int(getattr(each, name, 1)) == 0 for name in ("_seed", "_seed2")):
            raise UsageError(
                "the tf.data.Dataset shuffles without a seed, so that each worker would see its batches in an order of its "
                "own: give .shuffle(..., seed=...), or call keras.utils.set_random_seed(...) before it"
            )
        if fixed and getattr(each, "_reshuffle_each_iteration", True):
            raise UsageError(
                "the validation data shuffles anew in each iteration, so that it cannot be shared out between workers: leave "
                "shuffle out, or say reshuffle_each_iteration=False"
            )
