"""The process group that users and DDP see: the backend "elastic", which hands out guarded work objects.

It stands in front of gloo or the ring of our own sockets (CPU tensors) and of NCCL (CUDA tensors). Groups that a user makes
with `torch.distributed.new_group` are made by the same backend, belong to the generation that they were made in, and end with
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ....errors import RingError, StaleGroupError, UsageError
from ...ring.guard import Guard
from .futures import GuardedWork

BACKEND = "elastic"


class ElasticGroup(dist.ProcessGroup):
    """A process group of one generation."""

    def __init__(
        self, guard: Guard, cpu: Any, nccl: Any | None, rank: int, size: int, refuse: Callable[[], str | None]
    ):
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.guard = guard
        self.cpu: Any = cpu
        self.nccl: Any = nccl
        self._refuse = refuse
        self._retired = False

    def retire(self) -> list[Any]:
        """Give up the groups below, which the caller buries; every later use raises `StaleGroupError`."""
        self._retired = True
        below = [group for group in (self.cpu, self.nccl) if group is not None]
        self.cpu = self.nccl = None
        return below

    def getBackendName(self) -> str:
        return BACKEND

    def shutdown(self) -> None:
        """Nothing to do: the ring ends its groups itself."""

    def abort(self) -> None:
        self.guard.abort("aborted by torch.distributed")

    def start(self, operation: str, cuda: bool, *arguments: Any) -> Any:
        """Start a collective on the group below that serves the tensors' device; returns a work object."""
        self.check_usable()
        below = self.nccl if cuda else self.cpu
        if below is None:
            raise UsageError("this ring has no NCCL group: the model must be on a GPU when the job is joined")
        try:
            work = getattr(below, operation)(*arguments)
        except RuntimeError as error:
            if _is_lost_connection(error):
                self.guard.abort(str(error))
                raise self.guard.error() from error
            raise
        return work if cuda else GuardedWork(self.guard, work)

    def check_usable(self) -> None:
        """Raise `StaleGroupError`, `UsageError` (collectives are refused) or `RingError` (aborted) if nothing can be started."""
        if self._retired:
            raise StaleGroupError(
                f"this process group belongs to generation {self.guard.generation}, which has ended: make it again with "
                "torch.distributed.new_group after each change, for example in a callback given to job.on_change"
            )
        reason = self._refuse()
        if reason is not None:
            raise UsageError(reason)
        self.guard.check()


def _is_lost_connection(error: RuntimeError) -> bool:
    text = str(error)
    return "gloo" in text and ("Connection" in text or "pair" in text or "Socket" in text)


def _on_cuda(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    if isinstance(value, (list, tuple)):
        return any(_on_cuda(item) for item in value)
    return False


def _collective(operation: str) -> Callable[..., Any]:
    def call(self: ElasticGroup, *arguments: Any, **options: Any) -> Any:
        return self.start(operation, _on_cuda(arguments), *arguments, *options.values())

    call.__name__ = operation
    return call


for _operation in [
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "_allgather_base",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "all_gather_single",
    "all_to_all_single",
    "reduce_scatter_single",
]:
    setattr(ElasticGroup, _operation, _collective(_operation))

Maker = Callable[[Store, int, int], ElasticGroup]
_maker: Maker | None = None


def _create(store: Store, rank: int, size: int, timeout: Any) -> ElasticGroup:
    if _maker is None:
        raise RingError("there is no ring: process groups of the backend 'elastic' are made by a running job")
    return _maker(store, rank, size)


def make_groups_with(maker: Maker | None) -> None:
    """Set what makes the groups that `torch.distributed` asks this backend for."""
    global _maker
    _maker = maker


dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])
