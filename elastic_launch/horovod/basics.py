"""Who and where this worker is, and what Horovod would have been built with: the same on every face of the API."""

from __future__ import annotations

import warnings
from typing import Any

from . import world
from .common.process_sets import check_all_global


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Become a member of the job; waits until this worker is in its ring. `comm` may name all ranks, or nothing."""
    if comm is not None and (not isinstance(comm, (list, tuple)) or list(comm) != sorted(set(comm))):
        raise ValueError("init(comm=...) is not offered, since there is no MPI here: leave it out")
    check_all_global(process_sets)
    world.init()


def shutdown() -> None:
    """Collectives end; the worker stays a member of its job, and `init` opens them again."""
    if world.is_initialized():
        world.current().shut()


def is_initialized() -> bool:
    return world.is_initialized()


def _place() -> Any:
    found = world.current()
    if not found.is_open:
        raise world.NotInitialized()
    return found.place


def rank() -> int:
    return int(_place().rank)


def size() -> int:
    return int(_place().size)


def local_rank() -> int:
    """This worker's slot on its host, which it keeps for its life."""
    return int(_place().local_rank)


def local_size() -> int:
    return int(_place().local_size)


def cross_rank() -> int:
    return int(_place().cross_rank)


def cross_size() -> int:
    return int(_place().cross_size)


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of workers."""
    return bool(_place().is_homogeneous)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    warnings.warn("there is no timeline here: start_timeline does nothing", stacklevel=2)


def stop_timeline() -> None:
    """Nothing to stop."""


def mpi_threads_supported() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    return False


def gloo_enabled() -> bool:
    """True, for scripts that make sure that there is something other than MPI: the ring takes gloo's place."""
    return True


def gloo_built() -> bool:
    return True


def nccl_built() -> int:
    """0: tensors on a GPU go by way of the CPU's memory."""
    return 0


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return False


def rocm_built() -> bool:
    return False
