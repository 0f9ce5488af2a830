"""Python objects over the ring. Nothing here knows a framework; `session` and the like are for the callers' sake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import collectives, world
from .common.process_sets import ProcessSet, check_global, global_process_set
from .pickling import from_bytes, to_bytes


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of the rank `root_rank`; there it is `obj` itself."""
    check_global(process_set)
    engine = world.current().engine
    data = to_bytes(obj) if engine.rank == root_rank else b""
    data = collectives.broadcast_bytes(engine, data, root_rank, name)
    return obj if engine.rank == root_rank else from_bytes(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Everybody's, by rank."""
    check_global(process_set)
    return [from_bytes(each) for each in collectives.gather_bytes(world.current().engine, to_bytes(obj), name)]


of_any_rank: list[Callable[..., Any]] = [broadcast_object]
"""Functions that give everybody the object of the rank that they are told as `root_rank`."""
