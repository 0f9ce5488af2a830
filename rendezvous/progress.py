"""A page of memory that a worker and its agent share: where the worker is, without a message per step, and how long it
may step alone.

The agent makes it (`memfd_create`), the worker inherits its descriptor. It stays readable after the worker's death, so the
agent can say in which step a worker died.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from typing import NamedTuple

from .death_watch import DeathWatch

_LAYOUT = struct.Struct("<qqqqd")  # generation, rank, world size, step, samples
_LEASE = struct.Struct("<d")
_LEASE_AT = 512  # offset in bytes
SIZE = mmap.PAGESIZE
_DEATH_WATCH = 1024  # offset in bytes


class Progress(NamedTuple):
    """`step` is the number of the step that the worker is in (committed steps + 1); `samples` are applied by the whole job."""

    generation: int = 0
    rank: int = -1
    world_size: int = 0
    step: int = 0
    samples: float = 0.0


class ProgressPage:
    """One worker's page. Both sides open it from the same descriptor, which this takes over and closes."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._map = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self.death_watch = DeathWatch(self._map, _DEATH_WATCH)

    @staticmethod
    def create() -> int:
        """A new descriptor of a zeroed page, not inheritable."""
        descriptor = os.memfd_create("elastic-progress", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, SIZE)
        return descriptor

    def write(self, progress: Progress) -> None:
        _LAYOUT.pack_into(self._map, 0, *progress)

    def read(self) -> Progress:
        return Progress(*_LAYOUT.unpack_from(self._map, 0))

    def write_lease(self, until: float) -> None:
        """The agent's side: the server counts this host in until then (`time.monotonic()`), or says that nobody decides."""
        _LEASE.pack_into(self._map, _LEASE_AT, until)

    def read_lease(self) -> float:
        """0 if the agent has never written one."""
        (until,) = _LEASE.unpack_from(self._map, _LEASE_AT)
        return float(until)

    def close(self) -> None:
        """Let the memory go, as soon as nobody waits for the death watch in it any more."""
        del self.death_watch
        with contextlib.suppress(BufferError):
            self._map.close()
