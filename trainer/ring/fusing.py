"""Sums of many arrays at once: small ones are packed into buckets, since each collective costs a wait of its own.

A bucket is on its way as soon as it is full, so the next one is packed meanwhile. Which arrays share a bucket follows from
their order, types and sizes alone, so that all members, which give the same list, make the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...errors import UsageError
from .tcp.arithmetic import scale
from .tcp.buffers import ALIGNMENT, Array, Flat, alike, as_typed, empty, readable, writable
from .tcp.turns import Work

BUCKET = 25 * 1024 * 1024  # bytes


class Carrier(Protocol):
    """What carries the sums: a `TcpRing`, or what is as good as one."""

    @property
    def world_size(self) -> int: ...

    def start_allreduce(self, array: Any, operation: str = "sum", out: Any = None) -> Work[None]: ...


class Sums(Protocol):
    """Sums of arrays that come one after the other; those of `finish` are in the same order."""

    def add(self, array: Any) -> None: ...

    def finish(self) -> list[Any]: ...


def sum_arrays(
    ring: Carrier, arrays: Sequence[Any], weight: float = 1.0, out: Sequence[Any] | None = None, bucket: int = BUCKET
) -> list[Any]:
    """The sum over all members of `weight` times each array, in the order of `arrays`.

    The sums go into `out`, which may be `arrays` itself, and is returned; without it into fresh memory that is aligned as
    TensorFlow wants it, as numpy arrays of the same shapes and types. A weight of 0 takes part with zeros, whatever
    the arrays hold. `bucket` is in bytes. Raises `RingError`; then what is in `out` is of no use.
    """
    total = FusedSum(ring, weight, bucket)
    for array, place in zip(arrays, [None] * len(arrays) if out is None else out, strict=True):
        total.add(array, place)
    return total.finish()


class FusedSum:
    """`sum_arrays` for arrays that come one after the other."""

    def __init__(self, ring: Carrier, weight: float = 1.0, bucket: int = BUCKET) -> None:
        self._ring = ring
        self._weight = weight
        self._bucket = bucket
        self._results: list[Any] = []
        self._waiting: dict[str, list[_Item]] = {}
        self._started: list[_Bucket] = []

    def add(self, array: Any, out: Any = None) -> None:
        """Take part with `array`, which must not change before `finish`."""
        source = readable(array)
        item = _Item(len(self._results), array, source, None if out is None else writable(out))
        if item.out is not None and not source.same_kind_as(item.out):
            raise UsageError(
                f"{source.elements.size} elements of {source.dtype} do not fit into a {type(out).__name__}"
            )
        self._results.append(out)
        if source.nbytes * 4 >= self._bucket:
            self._start_alone(item)
            return
        waiting = self._waiting.setdefault(source.dtype, [])
        waiting.append(item)
        if sum(each.source.nbytes for each in waiting) >= self._bucket:
            self._start_packed(self._waiting.pop(source.dtype))

    def finish(self) -> list[Any]:
        """The sums, when all of them are there."""
        for items in self._waiting.values():
            self._start_packed(items)
        self._waiting.clear()
        error: BaseException | None = None
        for bucket in self._started:
            # Every one is waited for, whatever became of those before it, so that nobody writes into memory of the caller's.
            try:
                if bucket.work is not None:
                    bucket.work.wait()
            except Exception as failure:
                error = error or failure
            else:
                self._unpack(bucket)
        if error is not None:
            raise error
        return self._results

    def _start_alone(self, item: _Item) -> None:
        source = item.source
        room = empty(source.elements.size, source.dtype) if item.out is None else item.out.elements
        if self._weight == 1.0 and self._ring.world_size > 1:
            self._send([(item, room)], source, room)
            return
        scale(source.elements, source.dtype, self._weight, room)
        self._send([(item, room)], Flat(room, source.dtype), room)

    def _start_packed(self, items: list[_Item]) -> None:
        dtype, itemsize = items[0].source.dtype, items[0].source.elements.itemsize
        starts, end = [], 0
        for item in items:
            starts.append(end)
            end += -(-item.source.nbytes // ALIGNMENT) * (ALIGNMENT // itemsize)
        room = empty(end, dtype)
        placed = []
        for item, start, following in zip(items, starts, [*starts[1:], end], strict=True):
            behind = start + item.source.elements.size
            scale(item.source.elements, dtype, self._weight, room[start:behind])
            room[behind:following] = 0
            placed.append((item, room[start:behind]))
        self._send(placed, Flat(room, dtype), room)

    def _send(self, placed: list[tuple[_Item, Array]], source: Flat, room: Array) -> None:
        work = None
        if self._ring.world_size > 1 and room.size:
            out = None if source.elements is room else as_typed(room, source.dtype)
            work = self._ring.start_allreduce(as_typed(source.elements, source.dtype), "sum", out)
        self._started.append(_Bucket(placed, work))

    def _unpack(self, bucket: _Bucket) -> None:
        for item, sums in bucket.placed:
            if item.out is None:
                self._results[item.index] = alike(item.array, sums)
            elif item.out.elements is not sums:
                np.copyto(item.out.elements, sums)


@dataclass(frozen=True)
class _Item:
    """One of the arrays: as it was given, its elements, and where its sum goes."""

    index: int
    array: Any
    source: Flat
    out: Flat | None


@dataclass(frozen=True)
class _Bucket:
    """`placed`: each array in it, and where its sum is found."""

    placed: list[tuple[_Item, Array]]
    work: Work[None] | None
