"""Making the collectives that all members have asked for, over the ring. Small reductions of one kind are made as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..trainer.ring.tcp.buffers import Array, as_typed, empty, storage, writable
from .common.exceptions import MismatchError
from .negotiating import Ready
from .operation import Operation
from .requests import Request

Over: TypeAlias = Callable[[Operation, "BaseException | None"], None]

FUSION_LIMIT = 64 * 1024 * 1024  # bytes of the reductions that are made as one; HOROVOD_FUSION_THRESHOLD says it too


class Carrier(Protocol):
    """What carries the bytes: our ring. Every call raises `RingError` if it breaks."""

    def gather_bytes(self, data: bytes) -> list[bytes]: ...
    def broadcast_bytes(self, data: bytes, root: int) -> bytes: ...
    def allreduce(self, array: Any, operation: str) -> None: ...
    def broadcast(self, array: Any, root: int) -> None: ...
    def allgather(self, array: Any, out: Any = None) -> list[Any]: ...
    def reduce_scatter(self, array: Any, out: Any, operation: str, counts: Sequence[int]) -> None: ...


def fusion_limit(environ: Mapping[str, str] = os.environ) -> int:
    """What this member would choose, in bytes."""
    asked = environ.get("HOROVOD_FUSION_THRESHOLD", "")
    return int(asked) if asked.isdigit() else FUSION_LIMIT


class Performer:
    """One member's hand in it, with the same `fusion_limit` (bytes) as everybody's.

    `operations` are its own, by name; of one that is missing it has joined.
    """

    def __init__(self, ring: Carrier, rank: int, size: int, fusion_limit: int) -> None:
        self._ring = ring
        self._rank = rank
        self._size = size
        self._fusion_limit = fusion_limit

    def make(self, ready: Sequence[Ready], operations: Mapping[str, Operation], over: Over) -> None:
        """`over` is called for each operation when its turn has come. Raises `RingError`; the rest is the caller's then."""
        for batch in batches(ready, self._fusion_limit):
            first = batch[0].first
            own = [operations.get(each.name) for each in batch]
            if batch[0].error:
                error: BaseException | None = MismatchError(batch[0].error)
            else:
                error = None
                if len(batch) > 1:
                    self._reduce_fused(first, batch, own)
                else:
                    _MAKERS[first.kind](self, batch[0].requests, own[0])
            for operation in own:
                if operation is not None:
                    over(operation, error)

    def _reduce_fused(self, first: Request, batch: Sequence[Ready], own: Sequence[Operation | None]) -> None:
        sizes = [each.first.size for each in batch]
        fused = zeros(sum(sizes), first.dtype)
        rooms = [fused[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
        arrays = [writable(operation.memory).elements if operation is not None else None for operation in own]
        for room, array in zip(rooms, arrays, strict=True):
            if array is not None:
                np.copyto(room, array)
        self._ring.allreduce(as_typed(fused, first.dtype), first.operation)
        for room, array in zip(rooms, arrays, strict=True):
            if array is not None:
                np.copyto(array, room)

    def _reduce(self, requests: Sequence[Request | None], own: Operation | None) -> None:
        first = next(request for request in requests if request is not None)
        memory = own.memory if own is not None else as_typed(zeros(first.size, first.dtype), first.dtype)
        if first.size:
            self._ring.allreduce(memory, first.operation)

    def _gather(self, requests: Sequence[Request | None], own: Operation | None) -> None:
        first = next(request for request in requests if request is not None)
        rows = [request.shape[0] if request is not None else 0 for request in requests]
        sizes = [count * first.row for count in rows]
        whole = empty(sum(sizes), first.dtype)
        parts = [whole[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
        memory = own.memory if own is not None else as_typed(empty(0, first.dtype), first.dtype)
        if whole.size:
            self._ring.allgather(memory, [as_typed(part, first.dtype) for part in parts])
        if own is not None:
            own.elements, own.shape = whole, (sum(rows), *first.shape[1:])
            own.splits = tuple(rows)

    def _broadcast(self, requests: Sequence[Request | None], own: Operation | None) -> None:
        assert own is not None
        if own.request.size:
            self._ring.broadcast(own.memory, own.request.root)

    def _reduce_scatter(self, requests: Sequence[Request | None], own: Operation | None) -> None:
        assert own is not None
        request = own.request
        rows = rows_of_parts(request.shape[0], self._size)
        counts = [count * request.row for count in rows]
        own.elements = empty(counts[self._rank], request.dtype)
        own.shape = (rows[self._rank], *request.shape[1:])
        if request.size:
            out = as_typed(own.elements, request.dtype)
            self._ring.reduce_scatter(own.memory, out, request.operation, counts)

    def _all_to_all(self, requests: Sequence[Request | None], own: Operation | None) -> None:
        """By way of a gather of everything, since only neighbours are connected."""
        assert own is not None
        asked = [request for request in requests if request is not None]
        row, dtype = own.request.row, own.request.dtype
        whole = [empty(request.size, dtype) for request in asked]
        if any(part.size for part in whole):
            self._ring.allgather(own.memory, [as_typed(part, dtype) for part in whole])
        pieces = []
        for request, given in zip(asked, whole, strict=True):
            start = sum(request.splits[: self._rank]) * row
            pieces.append(given[start : start + request.splits[self._rank] * row])
        own.splits = tuple(request.splits[self._rank] for request in asked)
        own.elements = np.concatenate(pieces)
        own.shape = (sum(own.splits), *own.request.shape[1:])

    def _give_bytes(self, requests: Sequence[Request | None], own: Operation | None) -> None:
        assert own is not None
        own.data = self._ring.broadcast_bytes(own.memory, own.request.root)

    def _nothing(self, requests: Sequence[Request | None], own: Operation | None) -> None:
        """That all have come here was all."""


_MAKERS: dict[str, Callable[[Performer, Sequence[Request | None], Operation | None], None]] = {
    "allreduce": Performer._reduce,
    "allgather": Performer._gather,
    "broadcast": Performer._broadcast,
    "reducescatter": Performer._reduce_scatter,
    "alltoall": Performer._all_to_all,
    "bytes": Performer._give_bytes,
    "barrier": Performer._nothing,
    "join": Performer._nothing,
}


def batches(ready: Sequence[Ready], limit: int) -> Iterator[list[Ready]]:
    """What is made as one: reductions of one kind and type, together of at most `limit` bytes; all else by itself."""
    filling: dict[tuple[str, str], list[Ready]] = {}
    filled: dict[tuple[str, str], int] = {}
    for each in ready:
        first = each.first
        if each.error or first.kind != "allreduce":
            yield [each]
            continue
        key, nbytes = (first.operation, first.dtype), first.size * storage(first.dtype).itemsize
        if key in filling and filled[key] + nbytes > limit:
            yield filling.pop(key)
        batch = filling.setdefault(key, [])
        filled[key] = nbytes + (filled[key] if batch else 0)
        batch.append(each)
    yield from filling.values()


def rows_of_parts(rows: int, members: int) -> list[int]:
    """How many of the rows each member gets; the first ones get one more where they do not go up."""
    least, rest = divmod(rows, members)
    return [least + (rank < rest) for rank in range(members)]


def zeros(size: int, dtype: str) -> Array:
    array = empty(size, dtype)
    array[...] = 0
    return array
