"""How the ring of our own sockets is connected for torch, for all members or a group of them, and used without its thread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store

from ....errors import RingError, UsageError
from ....rendezvous.meeting.client import MeetingClient
from ...ring.guard import Guard
from ...ring.tcp.forming import Meeting
from ...ring.tcp.ring import TcpRing
from .tcp_group import TcpGroup

T = TypeVar("T")


class Connecting:
    """A group that is being connected on its ring's own thread."""

    def __init__(self, ring: TcpRing, meeting: Meeting | None, guard: Guard) -> None:
        self._ring = ring
        self._guard = guard
        guard.on_abort(lambda: ring.abort(guard.broken or "it was aborted"))
        self._forming = ring.start_forming(meeting)

    def result(self) -> TcpGroup:
        try:
            self._forming.wait()
        except RingError as error:
            self._guard.check()
            raise RingError(f"could not connect the ring of generation {self._guard.generation}: {error}") from error
        return TcpGroup(self._ring)


def connecting(
    meeting: MeetingClient | None, rank: int, size: int, address: str, limits: tuple[float, float], guard: Guard
) -> Connecting:
    """The group of all members. `limits` are those of forming and of an operation, in seconds."""
    ring = _ring(f"generation-{guard.generation}", rank, size, address, meeting, limits)
    return Connecting(ring, meeting, guard)


def subgroup(
    store: Store,
    meeting: MeetingClient | None,
    rank: int,
    size: int,
    address: str,
    limits: tuple[float, float],
    guard: Guard,
) -> TcpGroup:
    """A connected group of those who meet in `store`, of which `meeting` has the secret."""
    ring = _ring(f"generation-{guard.generation}-subgroup", rank, size, address, meeting, limits)
    return Connecting(ring, _StoreMeeting(store), guard).result()


def _ring(
    group: str, rank: int, size: int, address: str, meeting: MeetingClient | None, limits: tuple[float, float]
) -> TcpRing:
    forming, operation = limits
    secret = meeting.secret if meeting is not None else ""
    return TcpRing(group, rank, size, address=address, secret=secret, forming_limit=forming, operation_limit=operation)


def at_once(guard: Guard, call: Callable[[Any], T], argument: Any) -> T:
    """A collective of the ring on the caller's own thread, which spares it two changes of threads. Raises `RingError`."""
    with guard.waiting():
        try:
            return call(argument)
        except (RingError, UsageError) as error:
            guard.abort(str(error))
    raise guard.error()


class _StoreMeeting:
    """Its waits are the store's, which has limits of its own and ends with the generation."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value.decode())

    def get(self, key: str, timeout: float | None = None) -> bytes:
        if timeout is not None:
            self._store.wait([key], timedelta(seconds=timeout))
        return self._store.get(key)
