"""The ring of one generation as the engine uses it: collectives on CPU memory that end when the ring is aborted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..trainer.ring.sockets import SocketRing


class Carrier:
    """Every call raises `RingError` if the ring breaks."""

    def __init__(self, ring: SocketRing) -> None:
        self._ring = ring

    @property
    def is_broken(self) -> bool:
        return self._ring.guard.broken is not None

    def abort(self, reason: str) -> None:
        self._ring.abort(reason)

    def when_broken(self, call: Callable[[BaseException], None]) -> None:
        """Have `call` made with the error when the ring ends; at once if it has."""
        guard = self._ring.guard
        guard.on_abort(lambda: call(guard.error()))

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self._ring.run(lambda ring: ring.gather_bytes(data))

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        return self._ring.run(lambda ring: ring.broadcast_bytes(data, root))

    def allreduce(self, array: Any, operation: str) -> None:
        self._ring.run(lambda ring: ring.allreduce(array, operation))

    def broadcast(self, array: Any, root: int) -> None:
        self._ring.run(lambda ring: ring.broadcast(array, root))

    def allgather(self, array: Any, out: Any = None) -> list[Any]:
        return self._ring.run(lambda ring: ring.allgather(array, out))

    def reduce_scatter(self, array: Any, out: Any, operation: str, counts: Sequence[int]) -> None:
        self._ring.run(lambda ring: ring.reduce_scatter(array, out, operation, counts))
