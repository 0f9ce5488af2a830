"""Process sets. There is one, of all members: a ring connects neighbours, and a part of its members are not such."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .. import world
from .exceptions import NotOfferedError

_REFUSAL = (
    "process sets other than the global one are not offered: the ring connects each worker to its two neighbours only, and its"
    " members change. Leave out process_set, or run two jobs"
)


class ProcessSet:
    """Members that make collectives together. `process_set_id` is 0 for the global one, else None."""

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Any) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise NotOfferedError("there is no MPI here: give a list of ranks, and only that of all")
        self._ranks = sorted(int(rank) for rank in ranks_or_comm)

    @property
    def ranks(self) -> list[int] | None:
        return self._ranks

    def size(self) -> int | None:
        return world.current().place.size if self.process_set_id == 0 else None

    def rank(self) -> int | None:
        return world.current().place.rank if self.process_set_id == 0 else None

    def included(self) -> bool | None:
        if self.process_set_id == 0:
            return True
        return world.current().place.rank in (self.ranks or ())

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    def __init__(self) -> None:
        pass

    @property
    def ranks(self) -> list[int] | None:
        return list(range(world.current().place.size)) if world.is_initialized() else None


global_process_set: ProcessSet = _GlobalProcessSet()


def check_global(process_set: ProcessSet) -> None:
    """Raise `NotOfferedError` for a part of the members. A set of all ranks is as good as the global one."""
    known = process_set.ranks
    if process_set is not global_process_set and (known is None or known != global_process_set.ranks):
        raise NotOfferedError(_REFUSAL)


def check_all_global(process_sets: Any) -> None:
    """Those that `init` is given."""
    if isinstance(process_sets, (list, tuple)) and process_sets:
        raise NotOfferedError(_REFUSAL)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    found = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    check_global(found)
    found.process_set_id = 0
    return found


def remove_process_set(process_set: ProcessSet) -> bool:
    """False: the global one stays, and there is no other."""
    return False
