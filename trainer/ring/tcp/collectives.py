"""What a member may ask of its ring: each collective as a call that is checked here and made when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ....errors import UsageError
from . import passing, reducing, small
from .arithmetic import Arithmetic
from .buffers import Array, Flat, as_bytes, empty, readable, writable
from .heading import Heading
from .lanes import Lanes

T = TypeVar("T")
Call: TypeAlias = Callable[[Lanes | None, int], T]
"""Is given the lanes (None in a ring of one) and the collective's number."""


class Collectives:
    """Those of one member. Each raises `UsageError` at once for arguments that cannot be."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def barrier(self) -> Call[None]:
        def call(lanes: Lanes | None, number: int) -> None:
            if lanes is not None:
                nothing = memoryview(b"")
                heading = Heading(number, "barrier")
                passing.exchange(lanes, self._rank, self._size, heading, nothing, lambda rank, nbytes: nothing)

        return call

    def allreduce(self, value: Any, operation: str, out: Any = None) -> Call[None]:
        source = readable(value)
        result = writable(value if out is None else out)
        if not source.same_kind_as(result):
            raise UsageError(f"the result of {_words(source)} does not fit into {_words(result)}")
        arithmetic = Arithmetic.of(operation, source.dtype, self._size)

        def call(lanes: Lanes | None, number: int) -> None:
            if lanes is None:
                _copy(source.elements, result.elements)
                return
            heading = Heading(number, "allreduce", operation, source.dtype, 0, source.nbytes)
            is_small = source.nbytes * self._size <= small.LIMIT
            reduce = small.allreduce if is_small else reducing.allreduce
            reduce(lanes, self._rank, self._size, heading, arithmetic, source.elements, result.elements)

        return call

    def reduce_scatter(self, value: Any, out: Any, operation: str, counts: Sequence[int] | None = None) -> Call[None]:
        source, result = readable(value), writable(out)
        if counts is None:
            counts = [result.elements.size] * self._size
        bounds = np.cumsum([0, *counts]).tolist()
        if len(counts) != self._size or bounds[-1] != source.elements.size or min(counts) < 0:
            raise UsageError(f"parts of {[*counts]} elements for {self._size} members do not make up {_words(source)}")
        if source.dtype != result.dtype or counts[self._rank] != result.elements.size:
            raise UsageError(f"{counts[self._rank]} elements of {source.dtype} do not fit into {_words(result)}")
        parts = [*pairwise(bounds)]
        arithmetic = Arithmetic.of(operation, source.dtype, self._size)

        def call(lanes: Lanes | None, number: int) -> None:
            if lanes is None:
                _copy(source.elements, result.elements)
                return
            heading = Heading(number, "reduce_scatter", operation, source.dtype, 0, source.nbytes)
            reducing.reduce_scatter(
                lanes, self._rank, self._size, heading, arithmetic, source.elements, parts, result.elements
            )

        return call

    def allgather(self, value: Any, out: Any = None) -> Call[list[Array]]:
        """`out`: an array for each member, or one for all of them in equal parts; None for fresh ones of any size."""
        own = readable(value)
        outs = None if out is None else self._rooms(own, out)

        def call(lanes: Lanes | None, number: int) -> list[Array]:
            found = outs or [own.elements[:0]] * self._size
            if outs is None:
                found[self._rank] = empty(own.elements.size, own.dtype)
            _copy(own.elements, found[self._rank])

            def room(rank: int, nbytes: int) -> memoryview:
                if outs is None:
                    found[rank] = empty(nbytes // own.elements.itemsize, own.dtype)
                elif nbytes != found[rank].nbytes:
                    raise UsageError(
                        f"rank {rank} gives {nbytes} bytes, for which there is room for {found[rank].nbytes}"
                    )
                return as_bytes(found[rank])

            if lanes is not None:
                heading = Heading(number, "allgather", dtype=own.dtype, nbytes=own.nbytes)
                mine = as_bytes(own.elements)
                passing.exchange(lanes, self._rank, self._size, heading, mine, room, any_size=True)
            return found

        return call

    def broadcast(self, value: Any, root: int) -> Call[None]:
        self._check_rank(root)
        flat = readable(value) if root == self._rank else writable(value)

        def call(lanes: Lanes | None, number: int) -> None:
            if lanes is not None:
                heading = Heading(number, "broadcast", dtype=flat.dtype, root=root, nbytes=flat.nbytes)
                memory = as_bytes(flat.elements)
                passing.broadcast(lanes, self._rank, self._size, heading, memory, lambda rank, nbytes: memory)

        return call

    def gather_bytes(self, data: bytes) -> Call[list[bytes]]:
        def call(lanes: Lanes | None, number: int) -> list[bytes]:
            found = [bytearray() for _ in range(self._size)]
            found[self._rank] = bytearray(data)

            def room(rank: int, nbytes: int) -> memoryview:
                found[rank] = bytearray(nbytes)
                return memoryview(found[rank])

            if lanes is not None:
                heading = Heading(number, "gather of bytes", nbytes=len(data))
                passing.exchange(lanes, self._rank, self._size, heading, memoryview(data), room, any_size=True)
            return [bytes(each) for each in found]

        return call

    def broadcast_bytes(self, data: bytes, root: int) -> Call[bytes]:
        """`data` counts on the root alone."""
        self._check_rank(root)

        def call(lanes: Lanes | None, number: int) -> bytes:
            if lanes is None or self._size == 1:
                return data
            found = bytearray()

            def room(rank: int, nbytes: int) -> memoryview:
                found.extend(bytes(nbytes))
                return memoryview(found)

            is_root = root == self._rank
            heading = Heading(number, "broadcast of bytes", root=root, nbytes=len(data) if is_root else 0)
            passing.broadcast(lanes, self._rank, self._size, heading, memoryview(data), room, any_size=True)
            return data if is_root else bytes(found)

        return call

    def _check_rank(self, root: int) -> None:
        if not 0 <= root < self._size:
            raise UsageError(f"there is no rank {root} in a ring of {self._size}")

    def _rooms(self, own: Flat, out: Any) -> list[Array]:
        if isinstance(out, (list, tuple)):
            rooms = [writable(each) for each in out]
            if len(rooms) != self._size or any(room.dtype != own.dtype for room in rooms):
                raise UsageError(f"{self._size} arrays of {own.dtype} are needed for what the members give")
            elements = [room.elements for room in rooms]
        else:
            whole = writable(out)
            if whole.dtype != own.dtype or whole.elements.size != own.elements.size * self._size:
                raise UsageError(f"{self._size} times {_words(own)} do not fit into {_words(whole)}")
            elements = np.split(whole.elements, self._size)
        if elements[self._rank].size != own.elements.size:
            raise UsageError(f"{_words(own)} do not fit into the {elements[self._rank].size} that are meant for them")
        return elements


def _copy(source: Array, result: Array) -> None:
    if source is not result:
        np.copyto(result, source)


def _words(flat: Flat) -> str:
    return f"{flat.elements.size} elements of {flat.dtype}"
