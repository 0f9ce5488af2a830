"""The ring of one generation as the engine uses it: collectives on CPU memory that end when the ring is aborted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import RingError
from ..trainer.ring import tcp_connecting
from ..trainer.ring.ring import Ring
from ..trainer.ring.tcp.ring import TcpRing

T = TypeVar("T")


class Carrier:
    def __init__(self, ring: Ring, below: TcpRing) -> None:
        self._ring = ring
        self._below = below

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
        return self._at_once(lambda: self._below.gather_bytes(data))

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        return self._at_once(lambda: self._below.broadcast_bytes(data, root))

    def allreduce(self, array: Any, operation: str) -> None:
        self._at_once(lambda: self._below.allreduce(array, operation))

    def broadcast(self, array: Any, root: int) -> None:
        self._at_once(lambda: self._below.broadcast(array, root))

    def allgather(self, array: Any, out: Any = None) -> list[Any]:
        return self._at_once(lambda: self._below.allgather(array, out))

    def reduce_scatter(self, array: Any, out: Any, operation: str, counts: Sequence[int]) -> None:
        self._at_once(lambda: self._below.reduce_scatter(array, out, operation, counts))

    def _at_once(self, call: Callable[[], T]) -> T:
        return tcp_connecting.at_once(self._ring.guard, lambda _: call(), None)


def carrier_of(ring: Ring) -> Carrier:
    below = getattr(ring.group.cpu, "ring", None)
    if not isinstance(below, TcpRing):
        raise RingError("Horovod's collectives need the ring of our own sockets (backend tcp)")
    return Carrier(ring, below)
