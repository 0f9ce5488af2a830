"""The store of a server that is alone: what it holds ends with its process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from ..waiting import is_set_within
from .store import Fence, FenceLost, Held, Store


@dataclass
class _Lease:
    seconds: float
    ends_at: float
    keys: set[str] = field(default_factory=set)


class MemoryStore(Store):
    """For one server, which then is the job's single point of failure. Several servers of one process may share it."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._leases: dict[int, _Lease] = {}
        self._versions = itertools.count(1)
        self._lease_numbers = itertools.count(1)
        self._watchers: set[asyncio.Event] = set()

    async def get(self, key: str) -> Held | None:
        self._end_leases()
        return self._held.get(key)

    async def read(self, prefix: str) -> dict[str, Held]:
        self._end_leases()
        return {key: self._held[key] for key in sorted(self._held) if key.startswith(prefix)}

    async def compare_and_set(
        self, key: str, value: bytes, version: int, *, lease: int = 0, fence: Fence | None = None
    ) -> int | None:
        self._check(fence)
        if lease and lease not in self._leases:
            raise FenceLost(f"the lease of {key!r} is over")
        if version != self._version(key):
            return None
        self._forget(key)
        self._held[key] = Held(value, next(self._versions))
        if lease:
            self._leases[lease].keys.add(key)
        self._wake()
        return self._held[key].version

    async def delete(self, key: str, version: int, *, fence: Fence | None = None) -> bool:
        self._check(fence)
        if key not in self._held or version != self._version(key):
            return False
        self._forget(key)
        self._wake()
        return True

    async def grant(self, seconds: float) -> int:
        number = next(self._lease_numbers)
        self._leases[number] = _Lease(seconds, asyncio.get_running_loop().time() + seconds)
        return number

    async def renew(self, lease: int) -> bool:
        self._end_leases()
        held = self._leases.get(lease)
        if held is None:
            return False
        held.ends_at = asyncio.get_running_loop().time() + held.seconds
        return True

    async def revoke(self, lease: int) -> None:
        held = self._leases.pop(lease, None)
        if held is not None:
            for key in [*held.keys]:
                self._forget(key)
            self._wake()

    async def watch(self, prefix: str) -> AsyncGenerator[dict[str, Held], None]:
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            shown = None
            while True:
                changed.clear()
                content = await self.read(prefix)
                if content != shown:
                    shown = content
                    yield dict(content)
                else:
                    await self._wait_for(changed)
        finally:
            self._watchers.discard(changed)

    async def close(self) -> None:
        pass

    async def _wait_for(self, changed: asyncio.Event) -> None:
        """Until something changes, or a lease may have ended."""
        ends = min((lease.ends_at for lease in self._leases.values()), default=None)
        timeout = None if ends is None else max(0.0, ends - asyncio.get_running_loop().time()) + 0.001
        await is_set_within(changed, timeout)

    def _check(self, fence: Fence | None) -> None:
        self._end_leases()
        if fence is not None and self._version(fence.key) != fence.version:
            raise FenceLost(f"{fence.key!r} is not at version {fence.version} any more")

    def _version(self, key: str) -> int:
        held = self._held.get(key)
        return held.version if held else 0

    def _forget(self, key: str) -> None:
        self._held.pop(key, None)
        for lease in self._leases.values():
            lease.keys.discard(key)

    def _end_leases(self) -> None:
        now = asyncio.get_running_loop().time()
        for number in [number for number, lease in self._leases.items() if now >= lease.ends_at]:
            for key in [*self._leases.pop(number).keys]:
                self._forget(key)
            self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()
