"""The etcd store when etcd, or the way to it, fails: real etcds, real signals. Kills are for 3.4 only (see etcds.py)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from elastic_launch.rendezvous import etcd_watch
from elastic_launch.rendezvous.etcd_address import EtcdAddress
from elastic_launch.rendezvous.etcd_api import grpc, rpc
from elastic_launch.rendezvous.etcd_cluster import ATTEMPT_SECONDS, CALL_SECONDS, EtcdCluster
from elastic_launch.rendezvous.etcd_store import EtcdStore
from elastic_launch.rendezvous.etcd_watch import Snapshot, changes_since
from elastic_launch.rendezvous.store import Store, StoreUnavailable

from .cable import Cable
from .conftest import LIMIT
from .etcds import Etcd, running_cluster, running_etcd
from .test_store_watch import shown, shown_in_the_end, watching

SLACK = 1.0  # seconds for a busy machine
SLOW = CALL_SECONDS + SLACK


@pytest.fixture(scope="module")
def one_etcd() -> Iterator[Etcd]:
    with running_etcd("3.4") as etcd:
        yield etcd


@pytest.fixture
def etcd(one_etcd: Etcd) -> Iterator[Etcd]:
    """For one fault after another."""
    yield one_etcd
    one_etcd.mend()


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Etcd]]:
    with running_cluster("3.4") as members:
        yield members


async def restarted(etcd: Etcd) -> None:
    etcd.start(wait=False)  # by this thread, with which it ends
    await asyncio.to_thread(etcd.wait_until_ready)


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


async def compact(endpoint: str) -> None:
    """Forgets all history."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        kv = rpc.KVStub(channel)
        revision = (await kv.Range(rpc.RangeRequest(key=b"x"))).header.revision
        await kv.Compact(rpc.CompactionRequest(revision=revision))


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


def test_nothing_confirmed_is_lost_when_etcd_is_killed_and_restarted(etcd: Etcd) -> None:
    async def scenario() -> None:
        address = address_of(etcd.endpoint)
        store, other = EtcdStore(address), EtcdStore(address)
        counter = Counter(store, "count")
        counting = asyncio.ensure_future(counter.count())
        async with watching(other, "") as watch:
            await shown(watch)
            seen: list[int] = []

            async def see() -> None:
                async for content in watch:
                    seen.append(int(content["count"].value))

            seeing = asyncio.ensure_future(see())
            for _ in range(3):
                await counter.until_confirmed(20)
                etcd.kill()
                await asyncio.sleep(0.1)
                await restarted(etcd)
                assert await seconds_of(counter.until_confirmed(1)) < SLACK, "back in well under a second"
            counter.stop()
            await counting
            held = await store.get("count")
            assert held is not None
            while not seen or seen[-1] != int(held.value):
                assert not seeing.done()
                await asyncio.sleep(0.01)
            seeing.cancel()
            await asyncio.wait({seeing})
        assert seen == sorted(seen)
        assert int(held.value) >= counter.confirmed[-1]
        assert len(set(counter.confirmed)) == len(counter.confirmed)
        await store.close()
        await other.close()

    run(scenario())


def test_a_dead_etcd_is_unavailable_within_the_limit(etcd: Etcd) -> None:
    async def scenario() -> None:
        store = EtcdStore(address_of(etcd.endpoint))
        await store.compare_and_set("a", b"one", 0)
        async with watching(store, "") as watch:
            await shown(watch)
            etcd.kill()
            calls: list[Coroutine[Any, Any, Any]] = [
                store.get("a"),
                store.read(""),
                store.compare_and_set("b", b"", 0),
                store.delete("b", 1),
                store.grant(5),
                store.renew(77),
                store.revoke(77),
                anext(watch),
            ]
            for seconds in await asyncio.gather(*(seconds_until_unavailable(call) for call in calls)):
                assert seconds < SLOW
            await restarted(etcd)
            assert await seconds_of(store.get("a")) < SLACK
            async with watching(store, "") as again:
                assert await shown(again) == {"a": b"one"}
        await store.close()

    run(scenario())


def test_a_stopped_etcd_is_unavailable_within_the_limit_and_then_goes_on(etcd: Etcd) -> None:
    async def scenario() -> None:
        address = address_of(etcd.endpoint)
        store, other = EtcdStore(address), EtcdStore(address)
        version = await store.compare_and_set("a", b"one", 0)
        assert version
        async with watching(store, "") as watch:
            await shown(watch)
            etcd.pause()
            try:
                results = await asyncio.gather(
                    seconds_until_unavailable(store.get("a")),
                    seconds_until_unavailable(store.renew(77)),
                    seconds_until_unavailable(store.grant(5)),
                    seconds_until_unavailable(other.get("a")),  # which has no connection yet
                    seconds_until_unavailable(other.compare_and_set("b", b"", 0)),
                    seconds_until_unavailable(anext(watch)),
                )
                unknown = await seconds_until_unavailable(store.compare_and_set("a", b"two", version))
            finally:
                etcd.mend()
            assert all(seconds < SLOW for seconds in results[:5])
            assert results[5] < SLOW + 3, "one silence longer than the call that then fails"
            assert unknown < ATTEMPT_SECONDS + SLACK, "sent, so not made again"
        held = await store.get("a")
        assert held is not None and held.value in (b"one", b"two")
        async with watching(other, "") as watch:
            await shown(watch)
            await store.compare_and_set("a", b"three", held.version)
            assert await shown(watch) == {"a": b"three"}
        await store.close()
        await other.close()

    run(scenario())


def test_a_watch_gets_over_a_pause_that_is_shorter_than_the_limit(etcd: Etcd) -> None:
    async def scenario() -> None:
        address = address_of(etcd.endpoint)
        store, other = EtcdStore(address), EtcdStore(address)
        async with watching(store, "") as watch:
            await shown(watch)
            etcd.pause()
            waiting = asyncio.ensure_future(shown(watch))
            await asyncio.sleep(3.5)
            etcd.mend()
            await other.compare_and_set("a", b"one", 0)
            assert await waiting == {"a": b"one"}
        await store.close()
        await other.close()

    run(scenario())


def test_a_change_whose_answer_is_lost_is_not_made_twice(etcd: Etcd) -> None:
    async def scenario() -> None:
        async with Cable.laid(etcd.endpoint) as cable, Cable.laid(etcd.endpoint) as second:
            store = EtcdStore(address_of(cable.endpoint, second.endpoint))
            version = await store.compare_and_set("a", b"one", 0)
            assert version
            cable.block_answers()
            with pytest.raises(StoreUnavailable, match="whether etcd did set 'a' is not known"):
                await store.compare_and_set("a", b"two", version)
            assert await seconds_of(store.get("a")) < ATTEMPT_SECONDS / 2, "goes to the other endpoint"
            held = await store.get("a")
            assert held is not None and held.value == b"two", "made, though nobody could tell"
            second.block_answers()
            with pytest.raises(StoreUnavailable, match="is not known"):
                await store.delete("a", held.version)
            second.cut()
            assert await store.get("a") is None
            await store.close()

    run(scenario())


def test_a_silent_network_is_left_for_the_next_endpoint(etcd: Etcd) -> None:
    async def scenario() -> None:
        async with Cable.laid(etcd.endpoint) as cable:
            address = address_of(cable.endpoint, etcd.endpoint)
            store, other = EtcdStore(address), EtcdStore(replace(address, endpoints=(etcd.endpoint,)))
            lease = await store.grant(60)
            async with watching(store, "") as watch:
                await shown(watch)
                cable.block()
                await other.compare_and_set("a", b"one", 0)
                assert await shown(watch) == {"a": b"one"}, "after a silence, and a read at the other endpoint"
                assert await seconds_of(store.renew(lease)) < ATTEMPT_SECONDS / 2
            await store.close()
            await other.close()

    run(scenario())


def test_a_network_that_comes_back_is_used_again(etcd: Etcd) -> None:
    async def lose_and_regain(end: Callable[[Cable], None]) -> None:
        async with Cable.laid(etcd.endpoint) as cable:
            store = EtcdStore(address_of(cable.endpoint))
            await store.compare_and_set("a", b"one", 0)
            cable.block()
            assert await seconds_until_unavailable(store.get("a")) < SLOW
            end(cable)
            assert await seconds_of(store.get("a")) < SLACK
            await store.close()

    async def scenario() -> None:
        await asyncio.gather(lose_and_regain(Cable.restore), lose_and_regain(Cable.cut))

    run(scenario())


@pytest.mark.parametrize("fault", [Etcd.kill, Etcd.pause])
def test_the_loss_of_one_of_three_members_costs_a_call_about_a_second(
    cluster: list[Etcd], fault: Callable[[Etcd], None]
) -> None:
    async def scenario() -> None:
        follower = await one_that_follows(cluster)
        first = [follower, *(member for member in cluster if member is not follower)]
        address = address_of(*(member.endpoint for member in first))
        store, other = EtcdStore(address), EtcdStore(replace(address, endpoints=address.endpoints[1:]))
        await store.compare_and_set("a", b"one", 0)
        async with watching(store, "") as watch:
            await shown(watch)
            fault(follower)
            try:
                assert await seconds_of(store.get("a")) < ATTEMPT_SECONDS + 0.5
                for number in range(20):
                    assert await seconds_of(store.compare_and_set(f"b/{number}", b"", 0)) < ATTEMPT_SECONDS / 2
                lease = await store.grant(60)
                assert await store.renew(lease)
                held = await other.get("a")
                assert held is not None
                await other.compare_and_set("a", b"two", held.version)
                wanted = {"a": b"two"} | {f"b/{number}": b"" for number in range(20)}
                await shown_in_the_end(watch, wanted)
            finally:
                follower.mend()
        await store.close()
        await other.close()

    run(scenario())


@pytest.mark.parametrize("fault", [Etcd.kill, Etcd.pause])
def test_counting_goes_on_when_the_leader_is_lost(cluster: list[Etcd], fault: Callable[[Etcd], None]) -> None:
    async def scenario() -> None:
        leader = await the_leader(cluster)
        store = EtcdStore(address_of(*(member.endpoint for member in cluster)))
        counter = Counter(store, "count")
        counting = asyncio.ensure_future(counter.count())
        async with watching(store, "") as watch:
            await shown(watch)
            await counter.until_confirmed(10)
            fault(leader)
            try:
                assert await seconds_of(counter.until_confirmed(10)) < SLOW + 2, "one lost change and an election"
                counter.stop()
                await counting
                held = await store.get("count")
                assert held is not None
                await shown_in_the_end(watch, {"count": held.value})
            finally:
                leader.mend()
        await store.close()

    run(scenario())


async def the_leader(members: list[Etcd]) -> Etcd:
    while True:
        for member in members:
            async with grpc.aio.insecure_channel(member.endpoint) as channel:
                status = await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), wait_for_ready=True, timeout=20)
                if status.leader == status.header.member_id:
                    return member
        await asyncio.sleep(0.1)


async def one_that_follows(members: list[Etcd]) -> Etcd:
    leader = await the_leader(members)
    return next(member for member in members if member is not leader)


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


def test_a_closed_store_ends_what_is_in_progress(etcd: Etcd) -> None:
    async def scenario() -> None:
        store, connecting = (EtcdStore(address_of(etcd.endpoint)) for _ in range(2))
        async with watching(store, "") as watch:
            await shown(watch)
            etcd.pause()
            try:
                calls: list[Coroutine[Any, Any, Any]] = [
                    store.get("a"),
                    store.compare_and_set("a", b"", 0),
                    store.renew(1),
                    anext(watch),
                    connecting.get("a"),
                    connecting.compare_and_set("a", b"", 0),
                    anext(connecting.watch("")),
                ]
                waiting = [asyncio.ensure_future(seconds_until_unavailable(call)) for call in calls]
                await asyncio.sleep(0.2)
                await store.close()
                await connecting.close()
                assert max(await asyncio.gather(*waiting)) < 0.2 + SLACK / 2
            finally:
                etcd.mend()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get("a")

    run(scenario())


def test_a_cancelled_call_is_cancelled(etcd: Etcd) -> None:
    async def scenario() -> None:
        store, connecting = (EtcdStore(address_of(etcd.endpoint)) for _ in range(2))
        await store.get("a")
        etcd.pause()
        try:
            for call in (store.get("a"), store.renew(1), connecting.get("a")):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(call, 0.2)
        finally:
            etcd.mend()
        for each in (store, connecting):
            assert await each.get("a") is None
            await each.close()

    run(scenario())


def in_use() -> dict[str, int]:
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


@pytest.mark.parametrize("what", ["stores", "watches", "vain attempts"])
def test_nothing_is_left_behind(etcd: Etcd, what: str) -> None:
    async def use(store: EtcdStore) -> None:
        await store.renew(await store.grant(5))
        async with watching(store, "") as watch:
            await shown(watch)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})

    async def stores() -> None:
        store = EtcdStore(address_of(etcd.endpoint))
        await use(store)
        await store.close()

    async def watches() -> None:
        await use(shared)

    async def vain_attempts() -> None:
        store = EtcdStore(address_of(etcd.endpoint))
        for seconds in (0.02, 0.0):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(store.get("a"), seconds)
        await store.close()

    shared = EtcdStore(address_of(etcd.endpoint))
    kinds = {"stores": stores, "watches": watches, "vain attempts": vain_attempts}

    async def scenario() -> None:
        once = kinds[what]
        if what == "vain attempts":
            etcd.pause()
        for _ in range(5):
            await once()
        await asyncio.sleep(0.2)
        before = in_use()
        for _ in range(50):
            await once()
        ends = time.monotonic() + LIMIT
        while any(
            used > before[what] for what, used in in_use().items()
        ):  # a connection that is being made is given up after 2 s
            assert time.monotonic() < ends, (before, in_use())
            await asyncio.sleep(0.05)
        await shared.close()

    asyncio.run(scenario())
