"""Serving arrays: this member's rows of each global batch, without any framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from .sampler import ElasticSampler
from .serving import Loader, Turns


class ArrayLoader(Loader):
    """Serves rows of `data`: an array or tensor, a tuple, list or dict of them, or a sequence of samples of such a kind.

    `global_batch` samples make a step at any world size; with `batch_per_worker` instead, the step grows with the world
    size.
    """

    def __init__(
        self,
        job: Turns,
        data: Any,
        *,
        global_batch: int | None = None,
        batch_per_worker: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.data = in_memory(data)
        sampler = ElasticSampler(
            length_of(data),
            global_batch,
            batch_per_worker=batch_per_worker,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        super().__init__(job, sampler)

    def _next_batch(self, key: int) -> Any:
        return rows_of(self.data, next(iter(self.sampler)))


def length_of(data: Any) -> int:
    """The number of samples. Raises `UsageError` if there is none, or if arrays have different numbers of them."""
    if is_nested(data):
        lengths = {length_of(each) for each in (data.values() if isinstance(data, Mapping) else data)}
        if len(lengths) != 1:
            raise UsageError(f"the arrays have different numbers of samples: {sorted(lengths)}")
        return lengths.pop()
    if hasattr(data, "shape") and len(data.shape):
        return int(data.shape[0])
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return len(data)
    raise UsageError(
        f"a {type(data).__name__} has no samples to share out by number: give arrays, or a sequence with a length and access "
        "by index"
    )


def in_memory(data: Any) -> Any:
    """The same with numpy arrays for what has a shape, so that a tensor or table is not converted for each batch."""
    if isinstance(data, Mapping):
        return {key: in_memory(each) for key, each in data.items()}
    if is_nested(data):
        return _as(type(data), [in_memory(each) for each in data])
    return np.asarray(data) if hasattr(data, "shape") else data


def rows_of(data: Any, rows: Sequence[int]) -> Any:
    """Those samples as arrays, in the structure of `data`, or of its samples."""
    if isinstance(data, Mapping):
        return {key: rows_of(each, rows) for key, each in data.items()}
    if is_nested(data):
        return _as(type(data), [rows_of(each, rows) for each in data])
    if hasattr(data, "shape"):
        array = np.asarray(data)
        return array[np.asarray(rows, np.int64)]
    return _stacked([data[row] for row in rows])


def is_nested(data: Any) -> bool:
    """Whether it is a structure of arrays, and not itself an array or a sequence of samples."""
    if isinstance(data, Mapping):
        return True
    return isinstance(data, (tuple, list)) and bool(data) and all(hasattr(e, "shape") or is_nested(e) for e in data)


def _stacked(samples: list[Any]) -> Any:
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: _stacked([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        return _as(type(first), [_stacked(list(each)) for each in zip(*samples, strict=True)])
    return np.stack([np.asarray(sample) for sample in samples])


def _as(kind: type[Any], items: list[Any]) -> Any:
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
