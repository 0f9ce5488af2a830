"""Collectives on memory that the ring can carry, whatever the framework: what each face of the API is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..trainer.ring.tcp.buffers import readable
from .common.exceptions import NotOfferedError
from .engine import Engine
from .negotiating import JOIN
from .operation import Operation
from .requests import Request

Average, Sum, Adasum, Min, Max, Product = range(6)

_RING_NAMES = {Sum: "sum", Min: "min", Max: "max", Product: "product"}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def reduction_of(op: int | None, average: bool | None) -> int:
    """The operation that was asked for in either of Horovod's two ways."""
    if op is not None and average is not None:
        raise ValueError("op and average say the same thing: give one of them")
    if op is not None:
        return op
    return Sum if average is False else Average


def ring_operation(op: int, dtype: str, size: int) -> tuple[str, float]:
    """The ring's name for it, and what its result is then to be multiplied by."""
    if op == Average:
        return ("mean", 1.0) if dtype in _FLOATS else ("sum", 1.0 / size)
    if op == Adasum:
        raise NotOfferedError(
            "Adasum is not offered: it is a reduction of pairs, of which a ring has none. Use op=Average, and scale the learning"
            " rate by the number of workers or less"
        )
    if op not in _RING_NAMES:
        raise ValueError(f"op is {op!r}: give Average, Sum, Min, Max or Product")
    return _RING_NAMES[op], 1.0


def start(
    engine: Engine,
    kind: str,
    memory: Any,
    shape: Sequence[int],
    name: str | None,
    *,
    operation: str = "",
    root: int = -1,
    splits: Sequence[int] = (),
) -> Operation:
    """Ask for it. `memory` has the shape `shape`, and may not be touched until the operation is over."""
    dtype = readable(memory).dtype
    if kind in ("allgather", "reducescatter", "alltoall") and not shape:
        raise ValueError(
            f"{kind} works on the first dimension, and a single number has none: give a tensor of shape [1]"
        )
    if root >= engine.size or (kind == "broadcast" and root < 0):
        raise ValueError(f"root_rank is {root}, in a world of {engine.size}: give a rank from 0 to {engine.size - 1}")
    request = Request(
        f"{kind}.{name}" if name else engine.name(kind), kind, dtype, tuple(shape), operation, root, tuple(splits)
    )
    return engine.ask(Operation(request, memory))


def splits_of(given: Sequence[int] | None, rows: int, size: int) -> tuple[int, ...]:
    """The rows for each rank. Without `given`, equal parts."""
    if not given:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be split equally among {size} members: give splits")
        return (rows // size,) * size
    splits = tuple(int(each) for each in given)
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"splits are {list(splits)}: give {size} numbers of rows that together are {rows}")
    return splits


def gather_bytes(engine: Engine, data: bytes, name: str | None = None) -> list[bytes]:
    """Everybody's, by rank."""
    operation = start(engine, "allgather", memoryview(bytearray(data)), (len(data),), name).wait()
    whole = memoryview(operation.elements)
    ends = [sum(operation.splits[: rank + 1]) for rank in range(engine.size)]
    return [bytes(whole[end - count : end]) for end, count in zip(ends, operation.splits, strict=True)]


def broadcast_bytes(engine: Engine, data: bytes, root: int, name: str | None = None) -> bytes:
    """Those of the rank `root`."""
    if not 0 <= root < engine.size:
        raise ValueError(f"root_rank is {root}, in a world of {engine.size}: give a rank from 0 to {engine.size - 1}")
    request = Request(f"bytes.{name}" if name else engine.name("bytes"), "bytes", root=root)
    return engine.ask(Operation(request, data)).wait().data


def barrier(engine: Engine) -> None:
    engine.ask(Operation(Request(engine.name("barrier"), "barrier"))).wait()


def join(engine: Engine) -> int:
    """Give zeros to the reductions of those that have more data, until all have come here; the rank that came last."""
    return engine.ask(Operation(Request(JOIN, JOIN))).wait().last_joined


def any_of(engine: Engine, wanted: bool, name: str) -> bool:
    """Whether any member says so."""
    memory = memoryview(bytearray([wanted]))
    start(engine, "allreduce", memory, (1,), name, operation="max").wait()
    return bool(memory[0])
