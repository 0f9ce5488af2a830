"""The weighted sum over all members of one step's gradients: dense ones, rows of tables, and those that are not there.

What a member has can depend on its data: a branch that was not taken leaves no gradient, an empty part of the batch no
rows. So the members first tell each other what they have, and then make the same calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from ...errors import UsageError
from . import slices
from .fusing import Carrier as SumCarrier
from .fusing import FusedSum, Sums
from .slices import Rows, Slices, Table
from .tcp.buffers import as_typed, describe, storage


class Carrier(SumCarrier, slices.Carrier, Protocol):
    """What carries the sums: a `TcpRing`, or what is as good as one."""

    def gather_bytes(self, data: bytes) -> list[bytes]: ...


class Kind(msgspec.Struct, frozen=True, array_like=True):
    """What a gradient is: the type and shape of an array, or of a table's rows."""

    is_dense: bool
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'an array' if self.is_dense else 'rows'} of {self.dtype} {list(self.shape)}"


class _Told(msgspec.Struct, array_like=True):
    kinds: msgspec.Raw
    counts: list[int]


def sum_gradients(
    ring: Carrier,
    gradients: Sequence[Any],
    weight: float = 1.0,
    all_alike: bool = False,
    total: Sums | None = None,
) -> list[Any]:
    """The sum of `weight` times each gradient over all members, in fresh memory (in a ring of one perhaps the given one).

    A gradient is an array on the CPU of any framework, a `Slices`, or None. What is None here and not elsewhere counts as
    zero; what is None everywhere stays None. Arrays are summed to numpy arrays; slices to slices with int64 indices, in
    which a row may come more than once; what is an array at one member is one for all. A weight of 0 takes
    part with zeros, and touches no rows. `all_alike` says that every member has arrays of the same shapes and types, for
    certain, so that they need not tell each other. `total`, which has the same weight, sums the arrays in place of the ring, and
    may take others than those on the CPU. Raises `RingError`, or `UsageError` if the members' gradients do not fit.
    """
    kinds = [_kind(gradient) for gradient in gradients]
    if ring.world_size == 1 and weight == 1.0:
        return list(gradients)
    total = total or FusedSum(ring, weight)
    own_rows = {
        index: Rows.of(gradient)
        for index, gradient in enumerate(gradients)
        if isinstance(gradient, Slices) and weight != 0.0
    }
    tables = {}
    if not all_alike or any(kind is None or not kind.is_dense for kind in kinds):
        kinds, counts = _tell(ring, kinds, own_rows)
        tables = _gather_indices(ring, kinds, counts, own_rows)
    for index, (gradient, kind) in enumerate(zip(gradients, kinds, strict=True)):
        if index in tables:
            tables[index].start(ring, total, weight)
        elif kind is not None:
            total.add(_dense(gradient, own_rows.get(index), kind))
    sums: Iterator[Any] = iter(total.finish())
    return [
        None if kind is None else tables[index].finish(sums) if index in tables else next(sums)
        for index, kind in enumerate(kinds)
    ]


def agreed(by_rank: Sequence[Sequence[Kind | None]]) -> list[Kind | None]:
    """What each gradient is for all members together. Raises `UsageError` where they do not fit."""
    if len({len(kinds) for kinds in by_rank}) > 1:
        numbers = ", ".join(f"rank {rank} {len(kinds)}" for rank, kinds in enumerate(by_rank))
        raise UsageError(f"the members average different numbers of gradients: {numbers}")
    return [_one_kind(index, each) for index, each in enumerate(zip(*by_rank, strict=True))]


def _one_kind(index: int, by_rank: Sequence[Kind | None]) -> Kind | None:
    there = [(rank, kind) for rank, kind in enumerate(by_rank) if kind is not None]
    if not there:
        return None
    first, found = next(((rank, kind) for rank, kind in there if kind.is_dense), there[0])
    for rank, kind in there:
        fits = kind.shape == found.shape if kind.is_dense == found.is_dense else kind.shape == found.shape[1:]
        if kind.dtype != found.dtype or not fits:
            raise UsageError(f"gradient {index} is {found} at rank {first}, but {kind} at rank {rank}")
    return found


def _kind(gradient: Any) -> Kind | None:
    if gradient is None:
        return None
    if isinstance(gradient, Slices):
        dtype, shape = describe(gradient.values)
        return Kind(False, dtype, shape[1:])
    return Kind(True, *describe(gradient))


def _tell(
    ring: Carrier, kinds: list[Kind | None], own_rows: dict[int, Rows]
) -> tuple[list[Kind | None], list[list[int]]]:
    """What the gradients are for all members, and by rank how many rows each has of each."""
    counts = [own_rows[index].indices.size if index in own_rows else 0 for index in range(len(kinds))]
    mine = _Told(msgspec.Raw(msgspec.msgpack.encode(kinds)), counts)
    told = [msgspec.msgpack.decode(each, type=_Told) for each in ring.gather_bytes(msgspec.msgpack.encode(mine))]
    if any(each.kinds != told[0].kinds for each in told):
        kinds = agreed([msgspec.msgpack.decode(each.kinds, type=list[Kind | None]) for each in told])
    return kinds, [each.counts for each in told]


def _gather_indices(
    ring: Carrier, kinds: list[Kind | None], counts: list[list[int]], own_rows: dict[int, Rows]
) -> dict[int, Table]:
    """The tables among the gradients; which rows everybody has of them goes over the ring at once."""
    found = {
        index: own_rows.get(index) or Rows.none(kind.dtype, kind.shape)
        for index, kind in enumerate(kinds)
        if kind is not None and not kind.is_dense
    }
    if not found:
        return {}
    everything = np.concatenate([rows.indices for rows in found.values()])
    sizes = [[each[index] for index in found] for each in counts]
    places = [np.empty(sum(each), np.int64) for each in sizes]
    ring.start_allgather(everything, places).wait()
    split = [np.split(place, np.cumsum(each)[:-1]) for place, each in zip(places, sizes, strict=True)]
    tables = {}
    for position, (index, rows) in enumerate(found.items()):
        kind = kinds[index]
        assert kind is not None
        tables[index] = Table(rows, kind.shape, [each[position] for each in split])
    return tables


def _dense(gradient: Any, rows: Rows | None, kind: Kind) -> Any:
    """This member's part of what is an array for all."""
    if gradient is not None and not isinstance(gradient, Slices):
        return gradient
    if rows is None:
        return as_typed(np.zeros(kind.shape, storage(kind.dtype)), kind.dtype)
    length = kind.shape[0]
    if rows.indices.size and not 0 <= rows.indices[0] <= rows.indices[-1] < length:
        raise UsageError(f"rows {rows.indices[0]} to {rows.indices[-1]} are not all in a table of {length} rows")
    return rows.spread(np.arange(length)).reshape(kind.shape)
