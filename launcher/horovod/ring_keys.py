"""What the processes of a generation tell each other while Horovod builds its ring: kept at the generation's meeting point.

Horovod's names of the keys carry no generation; those of a meeting point belong to one. It lives with the agent of the
server's rank 0, and the next generation has another one: the loss of any host loses nothing that is still needed.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import TypeVar

from ...errors import RingError
from ...rendezvous.meeting.client import MeetingClient, MeetingTimeout
from ..threads import in_a_thread

_SCOPE = re.compile(r"(global|local_[\w.-]{1,300}|cross_\d{1,9})(_process_set_hash_[0-9a-f]{1,16})?")
_KEY = re.compile(r"(rank_)?\d{1,9}")
_HOLD = 1.0  # seconds that a request waits for its key, so that Horovod, which asks again every 10 ms, asks less often
_ADDRESS = 136  # bytes of one of gloo's addresses: sockaddr_storage, and a number

Address = tuple[str, int]
T = TypeVar("T")


class RingKeys:
    """Of one process in one generation. `addresses` are the listeners of the ring that it has met with so far."""

    def __init__(self, client: MeetingClient) -> None:
        self.client = client
        self.addresses: set[Address] = set()

    async def get(self, scope: str, key: str) -> bytes | None:
        """None if it does not come within a moment, or cannot be asked for any more."""
        name = _name(scope, key)
        if name is None:
            return None
        try:
            value = await self._ask(lambda: self.client.get(name, _HOLD))
        except MeetingTimeout:
            return None
        self._learn(key, value)
        return value

    async def put(self, scope: str, key: str, value: bytes) -> None:
        name = _name(scope, key)
        if name is None:
            raise RingError(f"{scope}/{key} is no key of Horovod's that is known here")
        self._learn(key, value)
        await self._ask(lambda: self.client.set(name, value))

    async def delete(self, scope: str, key: str) -> None:
        """Its rank has connected. A process set that is made again finds the scope empty."""
        name = _name(scope, key)
        if name is not None:
            await self._ask(lambda: self.client.delete(name))

    def close(self) -> None:
        self.client.close()

    async def _ask(self, call: Callable[[], T]) -> T:
        return await in_a_thread(call, "ring-keys", stop=lambda: None)

    def _learn(self, key: str, value: bytes) -> None:
        if key.isdigit():
            self.addresses.update(published_addresses(value))


def published_addresses(value: bytes) -> list[Address]:
    """The listeners that gloo tells for a rank, one for each peer. Empty for what is not that."""
    if len(value) % _ADDRESS:
        return []
    found = []
    for start in range(0, len(value), _ADDRESS):
        raw = value[start : start + _ADDRESS]
        family, port = int.from_bytes(raw[:2], "little"), int.from_bytes(raw[2:4], "big")
        if family == socket.AF_INET:
            found.append((socket.inet_ntop(socket.AF_INET, raw[4:8]), port))
        elif family == socket.AF_INET6:
            found.append((socket.inet_ntop(socket.AF_INET6, raw[8:24]), port))
    return found


def _name(scope: str, key: str) -> str | None:
    return f"{scope}/{key}" if _SCOPE.fullmatch(scope) and _KEY.fullmatch(key) else None
