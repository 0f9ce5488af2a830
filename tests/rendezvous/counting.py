"""A server that counts, and how long its calls take: what tests of faults measure with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.cluster import CALL_SECONDS
from elastic_launch.rendezvous.stores.store import Store, StoreUnavailable

SLACK = 1.0  # seconds for a busy machine
SLOW = CALL_SECONDS + SLACK


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def address_of(*endpoints: str) -> EtcdAddress:
    """Of an empty part of etcd."""
    return EtcdAddress(endpoints, prefix=f"/{time.monotonic_ns()}/")


async def seconds_of(call: Coroutine[Any, Any, Any]) -> float:
    begun = time.monotonic()
    await call
    return time.monotonic() - begun


async def seconds_until_unavailable(call: Coroutine[Any, Any, Any]) -> float:
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call
    return time.monotonic() - begun


class Counter:
    """Counts in a key, by compare-and-set, until it is told to stop; knows what was confirmed."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self.confirmed: list[int] = []
        self.unavailable = 0
        self.slowest = 0.0
        self._goes_on = True

    async def count(self) -> None:
        while self._goes_on:
            begun = time.monotonic()
            try:
                held = await self._store.get(self._key)
                number, version = (int(held.value), held.version) if held else (0, 0)
                assert number >= (self.confirmed[-1] if self.confirmed else 0), "a confirmed value is gone"
                if await self._store.compare_and_set(self._key, b"%d" % (number + 1), version):
                    self.confirmed.append(number + 1)
            except StoreUnavailable:
                self.unavailable += 1
            self.slowest = max(self.slowest, time.monotonic() - begun)
            await asyncio.sleep(0.005)

    async def until_confirmed(self, more: int) -> None:
        wanted = len(self.confirmed) + more
        while len(self.confirmed) < wanted:
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._goes_on = False
