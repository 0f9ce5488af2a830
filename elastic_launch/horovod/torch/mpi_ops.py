"""The collectives under Horovod's names and with its arguments.

Those that wait are differentiated through; the asynchronous ones and those that work in place (`_`) are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import collectives, world
from ..basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)  # fmt: skip
from ..collectives import Adasum, Average, Max, Min, Product, Sum
from ..common.exceptions import HorovodInternalError
from ..common.process_sets import (
    ProcessSet,
    add_process_set,
    check_global,
    global_process_set,
    remove_process_set,
)
from . import differentiated, starting
from .compression import Compression
from .handles import Handle, poll, synchronize

__all__ = [
    "Adasum", "Average", "Compression", "HorovodInternalError", "Max", "Min", "ProcessSet", "Product", "Sum", "add_process_set",
    "allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall",
    "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "ccl_built", "cross_rank",
    "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_",
    "grouped_reducescatter", "grouped_reducescatter_async", "handle_average_backwards_compatibility", "init",
    "is_homogeneous", "is_initialized", "join", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "poll", "rank", "reducescatter", "reducescatter_async", "remove_process_set",
    "rocm_built", "shutdown", "size", "sparse_allreduce_async", "start_timeline", "stop_timeline", "synchronize",
]  # fmt: skip

Tensors = Sequence[torch.Tensor]

handle_average_backwards_compatibility = collectives.reduction_of


# --- allreduce ---


def allreduce_async(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Everybody's `tensor` joined into a fresh one. Average if neither `op` nor `average` is given."""
    op = collectives.reduction_of(op, average)
    output = torch.empty_like(tensor, requires_grad=False)
    return starting.reduce(tensor, output, name, op, prescale_factor, postscale_factor, process_set)


def allreduce(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    op = collectives.reduction_of(op, average)
    compressed, ctx = compression.compress(tensor)
    reduced = differentiated.Allreduce.apply(compressed, name, op, prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = compression.decompress(reduced, ctx)
    return result


def allreduce_async_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """In place: `tensor` may not be touched until the handle is synchronized."""
    op = collectives.reduction_of(op, average)
    return starting.reduce(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = synchronize(handle)
    return result


def grouped_allreduce_async(
    tensors: Tensors, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    op = collectives.reduction_of(op, average)
    outputs = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    return starting.reduce_all(tensors, outputs, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce(
    tensors: Tensors, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:  # fmt: skip
    op = collectives.reduction_of(op, average)
    compressed = [compression.compress(tensor) for tensor in tensors]
    reduced = differentiated.GroupedAllreduce.apply(
        name, op, prescale_factor, postscale_factor, process_set, *[tensor for tensor, _ in compressed]
    )
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, compressed, strict=True)]


def grouped_allreduce_async_(
    tensors: Tensors, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    op = collectives.reduction_of(op, average)
    return starting.reduce_all(tensors, tensors, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(
    tensors: Tensors, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensors:  # fmt: skip
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    result: Tensors = synchronize(handle)
    return result


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """A function that waits for, and returns, the sum (or mean) of everybody's sparse tensors, as a sparse one."""
    if op not in (Sum, Average):
        raise ValueError("sparse tensors are reduced with op=Sum or Average; use tensor.to_dense() for others")
    found = tensor.coalesce()
    indices = allgather_async(found.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(found.values(), f"{name}.values", process_set)

    def handle() -> torch.Tensor:
        all_indices, all_values = synchronize(indices), synchronize(values)
        if op == Average:
            all_values = all_values / size()
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape, device=tensor.device)

    return handle


# --- allgather, broadcast ---


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Everybody's rows, by rank, in one tensor; the numbers of rows may differ."""
    return starting.gather(tensor, name, process_set)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    result: torch.Tensor = differentiated.Allgather.apply(tensor, name, process_set)
    return result


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    return starting.each(
        lambda tensor, its_name: starting.gather(tensor, its_name, process_set), tensors, name, "grouped_allgather"
    )


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensors:
    base = name or world.current().engine.name("grouped_allgather")
    return [allgather(tensor, f"{base}.{index}", process_set) for index, tensor in enumerate(tensors)]


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The tensor of `root_rank`, in a fresh one."""
    return starting.give(tensor, torch.empty_like(tensor, requires_grad=False), root_rank, name, process_set)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    result: torch.Tensor = differentiated.Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    return starting.give(tensor, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


# --- alltoall, reducescatter ---


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Rows of `tensor` to each rank, `splits` says how many; gives a pair: what came, and how many rows from each."""
    return starting.exchange(tensor, splits, name, process_set)


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """What came; with `splits` a pair of that, and how many rows came from each rank."""
    return differentiated.Alltoall.apply(tensor, splits, name, process_set)


def reducescatter_async(
    tensor: torch.Tensor, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Handle:  # fmt: skip
    """This worker's rows of everybody's `tensor` joined into one; the first ranks have one more if they do not go up."""
    return starting.scatter(tensor, name, op, process_set, prescale_factor, postscale_factor)


def reducescatter(
    tensor: torch.Tensor, name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    compressed, ctx = compression.compress(tensor)
    reduced = differentiated.Reducescatter.apply(compressed, name, op, process_set, prescale_factor, postscale_factor)
    result: torch.Tensor = compression.decompress(reduced, ctx)
    return result


def grouped_reducescatter_async(
    tensors: Tensors, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Handle:  # fmt: skip
    def start(tensor: torch.Tensor, its_name: str) -> Handle:
        return starting.scatter(tensor, its_name, op, process_set, prescale_factor, postscale_factor)

    return starting.each(start, tensors, name, "grouped_reducescatter")


def grouped_reducescatter(
    tensors: Tensors, name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[torch.Tensor]:  # fmt: skip
    base = name or world.current().engine.name("grouped_reducescatter")
    return [
        reducescatter(tensor, f"{base}.{index}", compression, op, process_set, prescale_factor, postscale_factor)
        for index, tensor in enumerate(tensors)
    ]


# --- all together ---


def join(device: int = -1) -> int:
    """This worker has no more data: give zeros to the others' reductions until all have joined. The rank that did so last."""
    return collectives.join(world.current().engine)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    check_global(process_set)
    collectives.barrier(world.current().engine)
