"""The store that gloo and NCCL meet through: `torch.distributed.Store` on the generation's meeting point.

Its waits are ours: they end at once when the generation is aborted. Every value that passes is shown to `learn`, which is
how the ring knows the addresses of its sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from ....rendezvous.meeting.client import MeetingClient


class RingStore(Store):
    """Keep a reference to it as long as a group lives that was made with it: torch does not."""

    def __init__(self, client: MeetingClient, learn: Callable[[bytes], None], timeout: float) -> None:
        super().__init__()
        self._client = client
        self._learn = learn
        self._timeout = timeout

    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._learn(data)
        self._client.set(key, data)

    def get(self, key: str) -> bytes:
        value = self._client.get(key, self._timeout)
        self._learn(value)
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        # torch passes the group's timeout, which is the short one of connecting: the generation's own limit counts.
        self._client.wait(list(keys), self._timeout)

    def add(self, key: str, amount: int) -> int:
        return self._client.add(key, amount)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._client.compare_set(key, _bytes(expected), _bytes(desired))

    def check(self, keys: Sequence[str]) -> bool:
        return self._client.check(list(keys))

    def delete_key(self, key: str) -> bool:
        return self._client.delete(key)

    def num_keys(self) -> int:
        return self._client.num_keys()

    def has_extended_api(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Ignored: the limit is the generation's."""

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
