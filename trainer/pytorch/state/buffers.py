"""Undoing what a step did to buffers (batch-norm statistics): a copy at its start, put back if it is done again."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class BufferBackup:
    """Keeps the buffers of `modules` as they were at the last `save`. Costs nothing for modules without buffers.

    A module may also have put another tensor in a buffer's place: `restore` puts the former one back. Make a new
    backup when modules get buffers that they did not have.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._slots = [(owner, key) for module in modules for owner in module.modules() for key in owner._buffers]
        self._live: list[torch.Tensor | None] = []
        self._kept: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []

    def save(self) -> None:
        self._live = [owner._buffers.get(key) for owner, key in self._slots]
        self._kept = [buffer.detach() for buffer in self._live if buffer is not None]
        if len(self._kept) != len(self._copies) or not all(map(_alike, self._kept, self._copies)):
            self._copies = [torch.empty_like(buffer, memory_format=torch.contiguous_format) for buffer in self._kept]
        if self._kept:
            torch._foreach_copy_(self._copies, self._kept)

    def restore(self) -> None:
        """Nothing happens if nothing was saved."""
        if self._kept:
            torch._foreach_copy_(self._kept, self._copies)
        for (owner, key), buffer in zip(self._slots, self._live, strict=False):
            if owner._buffers.get(key) is not buffer:
                owner._buffers[key] = buffer


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
