"""Starting collectives on tensors: each returns a `Handle`. Nothing here is differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...trainer.ring.tcp.buffers import readable
from .. import collectives, world
from ..collectives import Average
from ..common.process_sets import ProcessSet, check_global
from .handles import Handle
from .memory import for_ring, is_same, of_elements, scale_, shape_of


def reduce(
    tensor: torch.Tensor,
    output: torch.Tensor,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Handle:
    """`output` may be `tensor`."""
    check_global(process_set)
    engine = world.current().engine
    memory = for_ring(output)
    if output is not tensor:
        memory.copy_(tensor.detach())
    dtype = readable(memory).dtype
    operation, factor = collectives.ring_operation(op, dtype, engine.size)
    scale_(memory, prescale_factor)
    started = collectives.start(engine, "allreduce", memory, shape_of(memory), name, operation=operation)

    def finish() -> torch.Tensor:
        scale_(memory, postscale_factor * factor)
        if not is_same(memory, output):
            output.detach().copy_(memory)
        return output

    return Handle([started], finish)


def reduce_all(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Handle:
    base = name or world.current().engine.name("grouped_allreduce")
    handles = [
        reduce(tensor, output, f"{base}.{index}", op, prescale_factor, postscale_factor, process_set)
        for index, (tensor, output) in enumerate(zip(tensors, outputs, strict=True))
    ]
    return together(handles)


def together(handles: Sequence[Handle]) -> Handle:
    return Handle([], lambda: tuple(handle.wait() for handle in handles)) if not handles else _Several(handles)


class _Several(Handle):
    def __init__(self, handles: Sequence[Handle]) -> None:
        super().__init__([], lambda: tuple(handle.wait() for handle in handles))
        self._handles = handles

    @property
    def is_over(self) -> bool:
        return all(handle.is_over for handle in self._handles)


def gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Handle:
    check_global(process_set)
    memory = for_ring(tensor)
    started = collectives.start(world.current().engine, "allgather", memory, shape_of(memory), name)
    return Handle([started], lambda: of_elements(started.elements, started.shape, tensor))


def give(
    tensor: torch.Tensor, output: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> Handle:
    """A broadcast. `output` may be `tensor`."""
    check_global(process_set)
    memory = for_ring(output)
    engine = world.current().engine
    if output is not tensor and engine.rank == root_rank:
        memory.copy_(tensor.detach())
    started = collectives.start(engine, "broadcast", memory, shape_of(memory), name, root=root_rank)

    def finish() -> torch.Tensor:
        if not is_same(memory, output):
            output.detach().copy_(memory)
        return output

    return Handle([started], finish)


def exchange(tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Handle:
    """An alltoall; the result is a pair of what came, and how many rows from each rank."""
    check_global(process_set)
    memory = for_ring(tensor)
    engine = world.current().engine
    if isinstance(splits, torch.Tensor):
        asked, kind, device = splits.tolist(), splits.dtype, splits.device
    else:
        asked, kind, device = splits, torch.int32, torch.device("cpu")
    parts = collectives.splits_of(asked, memory.shape[0] if memory.dim() else 0, engine.size)
    started = collectives.start(engine, "alltoall", memory, shape_of(memory), name, splits=parts)

    def finish() -> tuple[torch.Tensor, torch.Tensor]:
        received = torch.tensor(started.splits, dtype=kind, device=device)
        return of_elements(started.elements, started.shape, tensor), received

    return Handle([started], finish)


def scatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> Handle:
    """A reducescatter."""
    check_global(process_set)
    if op not in (collectives.Sum, Average):
        raise ValueError("reducescatter takes op=Sum or Average")
    memory = for_ring(tensor)
    if prescale_factor != 1.0:
        memory = memory.clone()
        scale_(memory, prescale_factor)
    engine = world.current().engine
    dtype = readable(memory).dtype
    operation, factor = collectives.ring_operation(op, dtype, engine.size)
    started = collectives.start(engine, "reducescatter", memory, shape_of(memory), name, operation=operation)

    def finish() -> torch.Tensor:
        result = of_elements(started.elements, started.shape, tensor)
        scale_(result, postscale_factor * factor)
        return result

    return Handle([started], finish)


def each(
    start: Callable[[torch.Tensor, str], Handle], tensors: Sequence[torch.Tensor], name: str | None, kind: str
) -> Handle:
    """A group of one kind: each tensor is a collective of its own."""
    base = name or world.current().engine.name(kind)
    return together([start(tensor, f"{base}.{index}") for index, tensor in enumerate(tensors)])
