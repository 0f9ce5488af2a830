"""NCCL beside the ring of our own sockets, for workers whose framework is another one and whose tensors come by DLPack."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from ...ring.sockets import SocketRing
from . import nccl, undertaker
from .store import RingStore


class SocketRingWithNccl(SocketRing):
    """CUDA tensors go over NCCL, everything else over the sockets. Nothing of it is a group of `torch.distributed`'s."""

    _group: Any = None
    _store: Store | None = None
    _works: list[Any] = []
    _settled = False

    @property
    def kind(self) -> str:
        return "tcp, with NCCL"

    def form(self) -> None:
        super().form()
        limit = self.options.forming_limit
        store = HashStore() if self.meeting is None else RingStore(self.meeting, lambda _: None, limit)
        timeout = timedelta(seconds=self.options.operation_limit)
        self._store = store
        self._group = nccl.connect(store, self.rank, self.world_size, self.guard, timeout)

    def start_sum(self, tensor: torch.Tensor) -> None:
        """Start a sum of a CUDA tensor over the ring, in place. One of this step's reductions. Raises `RingError`."""
        self.check_usable()
        self._works.append(self._group.allreduce([tensor], dist.AllreduceOptions()))
        self._device = tensor.device

    def begin_step(self) -> None:
        super().begin_step()
        self._works, self._settled = [], False

    def settle_reductions(self) -> None:
        super().settle_reductions()
        if self._works:
            nccl.settled(self._works, self.guard, self._device)
            self._settled = True

    def reductions_succeeded(self) -> bool:
        return super().reductions_succeeded() and (self._settled or not self._works)

    def close(self) -> None:
        super().close()
        below = [self._group, self._store]
        self._group = self._store = None
        self._works = []
        undertaker.bury(below, f"nccl-{self.generation}")
