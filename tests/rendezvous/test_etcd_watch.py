"""Watches of an etcd that forgets its history, and from stream to stream."""

from __future__ import annotations

import asyncio

import pytest

from elastic_launch.rendezvous.stores.etcd import watch as etcd_watch
from elastic_launch.rendezvous.stores.etcd.api import grpc, rpc
from elastic_launch.rendezvous.stores.etcd.cluster import EtcdCluster
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.etcd.watch import Snapshot, changes_since

from .counting import Counter, address_of, run
from .etcds import Etcd
from .test_store_watch import shown, shown_in_the_end, watching


async def compact(endpoint: str) -> None:
    """Forgets all history."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        kv = rpc.KVStub(channel)
        revision = (await kv.Range(rpc.RangeRequest(key=b"x"))).header.revision
        await kv.Compact(rpc.CompactionRequest(revision=revision))


def test_a_watch_from_a_compacted_revision_ends_to_be_begun_again(etcd: Etcd) -> None:
    async def scenario() -> None:
        address = address_of(etcd.endpoint)
        store, cluster = EtcdStore(address), EtcdCluster(address)
        version = 0
        for number in range(5):
            version = await store.compare_and_set("a", b"%d" % number, version) or 0
        await compact(etcd.endpoint)
        name = address.prefix.encode()
        old = Snapshot({}, version - 3, len(name))
        assert [content async for content in changes_since(old, cluster, name, name + b"~") if content] == []
        await cluster.close()
        await store.close()

    run(scenario())


def test_a_watch_and_a_long_read_outlive_compactions(etcd: Etcd) -> None:
    async def scenario() -> None:
        address = address_of(etcd.endpoint)
        store = EtcdStore(address)
        for number in range(450):
            await store.compare_and_set(f"many/{number:03}", b"", 0)
        counter = Counter(store, "count")
        counting = asyncio.ensure_future(counter.count())

        async def keep_compacting() -> None:
            while True:
                await compact(etcd.endpoint)

        compacting = asyncio.ensure_future(keep_compacting())
        async with watching(EtcdStore(address), "count") as watch:
            await shown(watch)
            for _ in range(10):
                assert len(await store.read("many/")) == 450
            counter.stop()
            await counting
            compacting.cancel()
            await shown_in_the_end(watch, {"count": b"%d" % counter.confirmed[-1]})
        assert counter.unavailable == 0
        await store.close()

    run(scenario())


def test_a_watch_goes_on_from_stream_to_stream(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_watch, "STREAM_SECONDS", 0.05)

    async def scenario() -> None:
        store = EtcdStore(address_of(etcd.endpoint))
        counter = Counter(store, "count")
        counting = asyncio.ensure_future(counter.count())
        async with watching(store, "") as watch:
            contents = [await shown(watch) for _ in range(100)]
            counter.stop()
            await counting
            assert await store.compare_and_set("end", b"", 0)
            await shown_in_the_end(watch, {"count": b"%d" % counter.confirmed[-1], "end": b""})
        numbers = [int(content["count"]) for content in contents if content]
        assert numbers == sorted(set(numbers))
        await store.close()

    run(scenario())
