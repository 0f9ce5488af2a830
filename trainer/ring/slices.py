"""Gradients of tables, such as embeddings, of which a step touches few rows: only those rows go over the ring.

Each member first adds up its own rows that come more than once. Then all know which rows everybody has, and so how many
different ones there are: where the members' rows are mostly the same ones, these are reduced like a dense array;
where they are mostly different ones, everybody gets everybody's. Either way the result has the rows that any member
has touched, and no other, so an optimizer that leaves untouched rows alone does what it would do on one machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .fusing import Sums
from .tcp.arithmetic import Arithmetic, scale
from .tcp.buffers import Array, as_typed, describe, empty, readable, storage
from .tcp.turns import Work


class Carrier(Protocol):
    """What carries the rows: a `TcpRing`, or what is as good as one."""

    @property
    def rank(self) -> int: ...

    def start_allgather(self, array: Any, out: Any = None) -> Work[list[Array]]: ...


@dataclass(frozen=True)
class Slices:
    """`values[i]` belongs to row `indices[i]` of a table; a row that comes more than once counts as the sum."""

    values: Any
    indices: Any


@dataclass(frozen=True)
class Rows:
    """What a member gives of one table: `indices` grow; `elements` has a line for each (of bfloat16 the bits)."""

    indices: Array
    elements: Array
    dtype: str

    @staticmethod
    def none(dtype: str, shape: tuple[int, ...]) -> Rows:
        """No rows at all, each of which would have that shape."""
        return Rows(np.zeros(0, np.int64), np.empty((0, math.prod(shape)), storage(dtype)), dtype)

    @staticmethod
    def of(slices: Slices) -> Rows:
        """Rows that come more than once are added up: of 16-bit numbers as float32, and rounded once."""
        values = readable(slices.values)
        indices = readable(slices.indices).elements.astype(np.int64)
        elements = values.elements.reshape(indices.size, math.prod(describe(slices.values)[1][1:]))
        if (indices[1:] > indices[:-1]).all():
            return Rows(indices, elements, values.dtype)
        order = np.argsort(indices, kind="stable")
        indices, elements = indices[order], elements[order]
        starts = np.flatnonzero(np.concatenate([[True], indices[1:] != indices[:-1]]))
        return Rows(indices[starts], _add_up(elements, starts, values.dtype), values.dtype)

    def spread(self, rows: Array) -> Array:
        """With zeros for those of `rows`, which grow, that are not among these."""
        found = np.zeros((rows.size, self.elements.shape[1]), self.elements.dtype)
        found[np.searchsorted(rows, self.indices)] = self.elements
        return as_typed(found, self.dtype)


class Table:
    """The sum over all members of the rows of one table, each of shape `shape`. `by_rank`: the indices that each has."""

    def __init__(self, own: Rows, shape: tuple[int, ...], by_rank: list[Array]) -> None:
        self._own = own
        self._shape = shape
        self._by_rank = by_rank
        self._rows = np.concatenate(by_rank)
        self._place: Array | None = None
        self._gathering: Work[list[Array]] | None = None

    def start(self, ring: Carrier, total: Sums, weight: float) -> None:
        """Start what there is to do, in part as one of the arrays of `total`, whose weight is the same."""
        different = np.unique(self._rows)
        own = self._own
        if is_dense_cheaper(self._rows.size, different.size, own.dtype):
            self._rows = different
            total.add(own.spread(different))
            return
        width = own.elements.shape[1]
        self._place = empty(self._rows.size * width, own.dtype)
        bounds = np.cumsum([rows.size * width for rows in self._by_rank])[:-1]
        places = np.split(self._place, bounds)
        mine = places[ring.rank]
        scale(own.elements.reshape(-1), own.dtype, weight, mine)
        if self._place.size:
            typed = [as_typed(place, own.dtype) for place in places]
            self._gathering = ring.start_allgather(typed[ring.rank], typed)

    def finish(self, sums: Iterator[Array]) -> Slices:
        """The sum, of which `sums` has what was a part of `total`."""
        if self._gathering is not None:
            self._gathering.wait()
        values = np.asanyarray(next(sums)) if self._place is None else as_typed(self._place, self._own.dtype)
        return Slices(values.reshape(self._rows.size, *self._shape), self._rows)


def is_dense_cheaper(given: int, different: int, dtype: str) -> bool:
    """Whether to reduce `different` rows rather than to hand out the `given` ones of all members.

    Of each row given, every member gets a copy. In a reduction it gets each row twice, the first time as float32 if
    its numbers have 16 bits.
    """
    return given > different * (3 if Arithmetic.of("sum", dtype, 1).is_widened else 2)


def _add_up(elements: Array, starts: Array, dtype: str) -> Array:
    if starts.size == len(elements):
        return elements
    arithmetic = Arithmetic.of("sum", dtype, 1)
    with np.errstate(all="ignore"):
        if not arithmetic.is_widened:
            found: Array = np.add.reduceat(elements, starts, axis=0, dtype=elements.dtype)
            return found
        wide = arithmetic.widen(elements, np.empty(elements.shape, np.float32))
        total = np.add.reduceat(wide, starts, axis=0)
        rounded = np.empty(total.shape, elements.dtype)
        arithmetic.finish(total, rounded)
        return rounded
