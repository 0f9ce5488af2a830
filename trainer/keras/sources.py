"""Where batches come from: arrays, a PyDataset or a tf.data.Dataset, each as passes over numbered global batches.

Whatever the source, batch number k of a pass is the same on every member, and any of its rows can be asked for again: that
is what a position is worth. What cannot promise it is refused.
"""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import array_slicing, get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from ...errors import UsageError
from ..data.order import Order
from ..randomness import seed_for
from . import refusals

DEFAULT_BATCH = 32  # samples, as in model.fit


class Source(ABC):
    """Passes over global batches. `batches` is their number in a pass, None if only its end tells.

    Batches are structures of arrays or tensors with samples in the first dimension. The numbers that are asked for do not
    fall, but for the last two, which may be asked for again.
    """

    batches: int | None
    is_endless = False

    def enter(self, epoch: int) -> None:
        """The job is in `epoch`; the epochs before it have ended."""

    @abstractmethod
    def has(self, data_pass: int, number: int) -> bool:
        """Whether the pass has a batch of this number, from 0."""

    @abstractmethod
    def rows(self, data_pass: int, number: int) -> int:
        """The samples of the batch."""

    @abstractmethod
    def part(self, data_pass: int, number: int, start: int, stop: int) -> Any:
        """The rows [start, stop) of the batch."""

    @abstractmethod
    def spec(self) -> Any:
        """What a batch looks like: a structure of KerasTensors for any number of samples."""

    def identity(self) -> dict[str, Any]:
        """What must be equal on all members for a position to mean the same."""
        return {"batches": self.batches}


def source_for(
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    class_weight: Any = None,
    batch: int | None = None,
    steps: int | None = None,
    shuffle: Any = False,
    seed: int = 0,
    fixed: bool = False,
) -> Source:
    """The source of what `model.fit` takes as its data. UsageError, or Keras's ValueError, for what cannot be served.

    `fixed`: there is one pass, number 0, which may be asked for again; `batch` does not matter where data has its own.
    """
    refusals.check_data(x)
    if shuffle not in (True, False):
        raise UsageError(f"shuffle={shuffle!r} is not supported: give True or False")
    adapter = get_data_adapter(
        x=x,
        y=y,
        sample_weight=sample_weight,
        class_weight=class_weight,
        batch_size=batch,
        steps_per_epoch=steps,
        shuffle=shuffle and not _is_tf_dataset(x),
    )
    if isinstance(adapter, ArrayDataAdapter):
        return ArraySource(adapter, seed if shuffle else None)
    if batch is not None and not fixed:
        raise UsageError(
            f"a {type(x).__name__} makes its batches itself, each of which is a global batch: leave global_batch out"
        )
    if isinstance(adapter, PyDatasetAdapter):
        return PyDatasetSource(x, adapter, shuffle, seed)
    if _is_tf_dataset(x):
        from .tf_data import TfDataSource

        return TfDataSource(adapter.get_tf_dataset(), x, fixed)
    raise UsageError(
        f"data of type {type(x).__name__} is not supported: give arrays, a keras.utils.PyDataset or a tf.data.Dataset"
    )


class ArraySource(Source):
    """Arrays, tensors, data frames: each pass is a permutation of the samples, or their own order without a `seed`."""

    def __init__(self, adapter: Any, seed: int | None) -> None:
        for leaf in keras.tree.flatten(adapter._inputs):
            if type(leaf).__name__ in ("RaggedTensor", "SparseTensor") or type(leaf).__module__.startswith(
                "scipy.sparse"
            ):
                raise UsageError(
                    f"a {type(leaf).__name__} is not supported among arrays: give "
                    "tf.data.Dataset.from_tensor_slices(...).batch(...)"
                )
        self._arrays = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="numpy")
        self._samples: int = adapter._num_samples
        self._batch: int = adapter.batch_size
        self._seed = seed
        self._order: tuple[int, Order] | None = None
        self.batches: int = adapter.num_batches

    def has(self, data_pass: int, number: int) -> bool:
        return number < self.batches

    def rows(self, data_pass: int, number: int) -> int:
        return min(self._batch, self._samples - number * self._batch)

    def part(self, data_pass: int, number: int, start: int, stop: int) -> Any:
        first = number * self._batch
        wanted: Any = slice(first + start, first + stop)
        if self._seed is not None:
            if self._order is None or self._order[0] != data_pass:
                self._order = (data_pass, Order(self._samples, self._seed, data_pass))
            wanted = self._order[1].samples(first + start, first + stop).astype(np.int64)
        return self._take(wanted)

    def spec(self) -> Any:
        return spec_of(self._take(slice(0, 1)))

    def identity(self) -> dict[str, Any]:
        return {"samples": self._samples, "global_batch": self._batch, "seed": self._seed}

    def _take(self, wanted: Any) -> Any:
        def one(array: Any) -> Any:
            return None if array is None else array.convert_to_numpy(array[wanted])

        return keras.tree.map_structure(one, self._arrays)


class PyDatasetSource(Source):
    """A `keras.utils.PyDataset`. With `shuffle`, each pass takes its batches in another order.

    What its `on_epoch_begin` and `on_epoch_end` draw at random is seeded by the epoch. A worker that joins later calls them
    for the epochs that it was not there for, so that it comes to the same batches.
    """

    def __init__(self, dataset: Any, adapter: Any, shuffle: bool, seed: int) -> None:
        self._dataset = dataset
        self._adapter = adapter
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = -1
        self._kept: dict[tuple[int, int], Any] = {}
        self.batches: int | None = dataset.num_batches
        self.is_endless = self.batches is None

    def enter(self, epoch: int) -> None:
        while self._epoch < epoch:
            with _seeded(seed_for(self._seed, self._epoch + 1, 0)):
                if self._epoch >= 0:
                    self._dataset.on_epoch_end()
                self._dataset.on_epoch_begin()
            self._epoch += 1
            self.batches = self._dataset.num_batches
            self._kept.clear()

    def has(self, data_pass: int, number: int) -> bool:
        return self.batches is None or number < self.batches

    def rows(self, data_pass: int, number: int) -> int:
        return rows_of(self._get(data_pass, number))

    def part(self, data_pass: int, number: int, start: int, stop: int) -> Any:
        return cut(self._get(data_pass, number), start, stop)

    def spec(self) -> Any:
        return spec_of(self._adapter._standardize_batch(self._dataset[0]))

    def identity(self) -> dict[str, Any]:
        return {"batches": self.batches, "shuffle": self._shuffle, "seed": self._seed}

    def _get(self, data_pass: int, number: int) -> Any:
        key = (data_pass, number)
        if key not in self._kept:
            index = number
            if self._shuffle and self.batches is not None:
                index = int(Order(self.batches, self._seed, data_pass).samples(number, number + 1)[0])
            keep_last(self._kept, key, self._adapter._standardize_batch(self._dataset[index]))
        return self._kept[key]


def keep_last(kept: dict[Any, Any], key: Any, value: Any, count: int = 2) -> None:
    kept[key] = value
    while len(kept) > count:
        del kept[next(iter(kept))]


def rows_of(batch: Any) -> int:
    return int(next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None).shape[0])


def cut(batch: Any, start: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda value: None if value is None else value[start:stop], batch)


def spec_of(batch: Any) -> Any:
    def one(value: Any) -> Any:
        if value is None:
            return None
        return keras.KerasTensor((None, *value.shape[1:]), keras.backend.standardize_dtype(value.dtype))

    return keras.tree.map_structure(one, batch)


def _is_tf_dataset(data: Any) -> bool:
    return any(
        parent.__name__ == "DatasetV2" and parent.__module__.startswith("tensorflow.") for parent in type(data).__mro__
    )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
