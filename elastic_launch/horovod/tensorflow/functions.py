"""Making variables and objects those of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import objects
from ..common.exceptions import NotOfferedError
from ..common.process_sets import ProcessSet, global_process_set
from .mpi_ops import broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """In place, whether or not `inplace` says so. All members give as many variables, of the same shapes."""
    broadcast_(list(variables), root_rank, "variables", process_set)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of the rank `root_rank`."""
    _refuse_session(session)
    return objects.broadcast_object(obj, root_rank, name, process_set)


objects.of_any_rank.append(broadcast_object)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Everybody's, by rank."""
    _refuse_session(session)
    return objects.allgather_object(obj, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = None
) -> Any:
    """A function of an object that gives everybody the one of `root_rank`."""
    _refuse_session(session)
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set or global_process_set)


def _refuse_session(session: Any) -> None:
    if session is not None:
        raise NotOfferedError("sessions of TensorFlow 1 are not offered: run eagerly, or in a tf.function")
