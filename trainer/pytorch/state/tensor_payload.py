"""Tensors as the payload of a copy: CPU memory is sent and received in place, a device's goes through one chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...state.payload import cumulated, cut
from .memory import TensorSpec, cpu_bytes, gathered, overlaps_itself, scatter, wire_view


class TensorPayload:
    """The bytes of `tensors`, in the order and layout of `specs`, which are the sender's.

    A tensor whose memory lies in another way than its spec goes through a second tensor of its size. After a receive
    `finish` puts those into place; before it such tensors are unchanged.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], specs: Sequence[TensorSpec], receiving: bool = False) -> None:
        self._rows: list[torch.Tensor] = []
        self._scattered: list[tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]] = []
        for tensor, spec in zip(tensors, specs, strict=True):
            row = wire_view(tensor, spec.order)
            if row is None or (receiving and overlaps_itself(tensor)):
                if receiving:
                    row = torch.empty(tensor.nbytes, dtype=torch.uint8, device=tensor.device)
                    self._scattered.append((row, tensor, spec.order))
                else:
                    row = gathered(tensor, spec.order)
            self._rows.append(row)
        self._ends = cumulated(row.nbytes for row in self._rows)
        self.nbytes = self._ends[-1] if self._ends else 0
        self._views = [cpu_bytes(row) if row.device.type == "cpu" else None for row in self._rows]
        _synchronize({row.device for row in self._rows})  # cursors work on streams of their own

    def cursor(self) -> TensorCursor:
        return TensorCursor(self._rows, self._views, self._ends)

    def copy_to(self, host: memoryview) -> None:
        """Copies all of it into `host`, `nbytes` bytes of CPU memory."""
        if not self.nbytes:
            return
        target = torch.frombuffer(host, dtype=torch.uint8)
        start = 0
        for row, end in zip(self._rows, self._ends, strict=True):
            target[start:end].copy_(row, non_blocking=row.is_cuda)
            start = end
        _synchronize({row.device for row in self._rows})

    def finish(self) -> None:
        """Puts what was received beside its tensor into it. Call it once, after everything has been received."""
        for row, tensor, order in self._scattered:
            scatter(row, tensor, order)
        self._scattered.clear()


class TensorCursor:
    """One thread's access; it holds one chunk of (pinned) memory once it has met a tensor on a device."""

    def __init__(self, rows: list[torch.Tensor], views: list[memoryview | None], ends: list[int]) -> None:
        self._rows = rows
        self._views = views
        self._ends = ends
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._chunk_view = memoryview(b"")

    def load(self, start: int, stop: int) -> list[memoryview]:
        return self._parts(start, stop, fill=True)

    def room(self, start: int, stop: int) -> list[memoryview]:
        return self._parts(start, stop, fill=False)

    def store(self, start: int, stop: int) -> None:
        used = 0
        devices = set()
        for index, begin, end in cut(self._ends, start, stop):
            if self._views[index] is None:
                row = self._rows[index]
                row[begin:end].copy_(self._chunk[used : used + end - begin], non_blocking=row.is_cuda)
                devices.add(row.device)
                used += end - begin
        _synchronize(devices)

    def _parts(self, start: int, stop: int, fill: bool) -> list[memoryview]:
        parts = []
        used = 0
        devices = set()
        for index, begin, end in cut(self._ends, start, stop):
            view = self._views[index]
            if view is not None:
                parts.append(view[begin:end])
                continue
            if self._chunk.nbytes < stop - start:
                self._chunk = torch.empty(stop - start, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
                self._chunk_view = cpu_bytes(self._chunk)
            if fill:
                row = self._rows[index]
                self._chunk[used : used + end - begin].copy_(row[begin:end], non_blocking=row.is_cuda)
                devices.add(row.device)
            parts.append(self._chunk_view[used : used + end - begin])
            used += end - begin
        _synchronize(devices)
        return parts


def _synchronize(devices: set[torch.device]) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
