"""The etcd store when its etcd, or the way to it, fails: a real etcd, real signals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from elastic_launch.rendezvous.stores.etcd.cluster import ATTEMPT_SECONDS
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.store import StoreUnavailable

from .cable import Cable
from .counting import SLACK, SLOW, Counter, address_of, run, seconds_of, seconds_until_unavailable
from .etcds import Etcd
from .test_store_watch import shown, watching


async def restarted(etcd: Etcd) -> None:
    etcd.start(wait=False)  # by this thread, with which it ends
    await asyncio.to_thread(etcd.wait_until_ready)


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
        async with watching(other, "") as watch:
            await shown(watch)
            while True:  # the change of unknown outcome may still be made, behind a read
                held = await store.get("a")
                assert held is not None and held.value in (b"one", b"two")
                if await store.compare_and_set("a", b"three", held.version):
                    break
            while (content := await shown(watch)) != {"a": b"three"}:
                assert content == {"a": b"two"}
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
            assert await seconds_of(store.get("a")) < ATTEMPT_SECONDS, "goes to the other endpoint"
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
                assert await seconds_of(store.renew(lease)) < ATTEMPT_SECONDS
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
