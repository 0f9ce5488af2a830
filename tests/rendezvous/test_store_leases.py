"""What every store promises of leases: keys that end with their owner."""

from __future__ import annotations

import asyncio
import time

import pytest

from elastic_launch.rendezvous.stores.store import FenceLost, Store

from .conftest import LIMIT, MakeStore, WithStore

SHORT = 1.0  # seconds, the shortest that etcd grants; it may take as much longer to end it


async def _until_gone(store: Store, key: str, begun: float) -> float:
    """Seconds since `begun` when the key is gone."""
    while await store.get(key) is not None:
        assert time.monotonic() - begun < LIMIT, f"{key} is still there"
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


def test_a_key_goes_when_its_lease_ends_and_not_before(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        begun = time.monotonic()
        lease = await store.grant(SHORT)
        assert lease != 0
        assert await store.compare_and_set("servers/a", b"", 0, lease=lease)
        assert await store.compare_and_set("servers/b", b"", 0)
        assert SHORT <= await _until_gone(store, "servers/a", begun) < LIMIT
        assert list(await store.read("servers/")) == ["servers/b"]
        assert not await store.renew(lease)

    with_store(scenario)


def test_a_renewed_lease_lasts_its_full_time_again(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        lease = await store.grant(3 * SHORT)
        assert await store.compare_and_set("servers/a", b"", 0, lease=lease)
        for _ in range(5):
            await asyncio.sleep(SHORT)
            renewed = time.monotonic()
            assert await store.renew(lease)
        assert await store.get("servers/a") is not None
        assert await _until_gone(store, "servers/a", renewed) >= 3 * SHORT

    with_store(scenario)


def test_a_revoked_lease_takes_its_keys_along_at_once(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        lease, other = await store.grant(60), await store.grant(60)
        assert lease != other
        for key in ("servers/a", "servers/b"):
            assert await store.compare_and_set(key, b"", 0, lease=lease)
        assert await store.compare_and_set("servers/c", b"", 0, lease=other)
        await store.revoke(lease)
        assert list(await store.read("servers/")) == ["servers/c"]
        assert not await store.renew(lease)
        assert await store.renew(other)
        await store.revoke(lease)
        await store.revoke(other)

    with_store(scenario)


def test_a_change_under_a_lease_that_is_over_is_as_behind_a_lost_fence(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        version = await store.compare_and_set("servers/a", b"one", 0)
        assert version
        lease = await store.grant(60)
        await store.revoke(lease)
        with pytest.raises(FenceLost, match="the lease of 'servers/a' is over"):
            await store.compare_and_set("servers/a", b"two", version, lease=lease)
        with pytest.raises(FenceLost):
            await store.compare_and_set("servers/b", b"one", 0, lease=lease)
        assert [held.value for held in (await store.read("servers/")).values()] == [b"one"]

    with_store(scenario)


def test_a_lease_that_never_was_is_not_renewed(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        assert not await store.renew(123456789)
        await store.revoke(123456789)

    with_store(scenario)


def test_the_last_change_decides_which_lease_a_key_goes_with(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        leases = [await store.grant(60) for _ in range(3)]
        kept = await store.compare_and_set("kept", b"", 0, lease=leases[0])
        moved = await store.compare_and_set("moved", b"", 0, lease=leases[0])
        assert kept and moved
        assert await store.compare_and_set("kept", b"", kept)
        assert await store.compare_and_set("moved", b"", moved, lease=leases[1])
        await store.revoke(leases[0])
        assert list(await store.read("")) == ["kept", "moved"]
        await store.revoke(leases[1])
        assert list(await store.read("")) == ["kept"]

    with_store(scenario)


def test_a_fence_falls_with_its_lease_and_another_server_takes_its_place(make_store: MakeStore) -> None:
    async def scenario() -> None:
        old, new = make_store(), make_store()
        other = await new.grant(60)
        lease = await old.grant(3 * SHORT)
        first = await old.compare_and_set("leader", b"old", 0, lease=lease)
        assert first
        assert await new.compare_and_set("leader", b"new", 0, lease=other) is None
        await _until_gone(new, "leader", time.monotonic())
        second = await new.compare_and_set("leader", b"new", 0, lease=other)
        assert second and second > first
        await new.close()
        await old.close()

    asyncio.run(scenario())
