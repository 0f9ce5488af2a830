"""What every store promises of watches: the newest content comes in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from elastic_launch.rendezvous.stores.store import Held, Store

from .conftest import LIMIT, MakeStore, WithStore

Watch = AsyncIterator[dict[str, Held]]


def watching(store: Store, prefix: str) -> Any:
    """`async with watching(...) as watch`: closed at the end."""
    return aclosing(store.watch(prefix))


async def shown(watch: Watch) -> dict[str, bytes]:
    """The values of the next content."""
    return {key: held.value for key, held in (await asyncio.wait_for(anext(watch), LIMIT)).items()}


async def shown_in_the_end(watch: Watch, wanted: dict[str, bytes]) -> int:
    """Waits for this content. How many contents came on the way."""
    came = 0
    while await shown(watch) != wanted:
        came += 1
    return came


def test_a_watch_begins_with_what_is_there(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        async with watching(store, "jobs/") as watch:
            assert await shown(watch) == {}
        version = await store.compare_and_set("jobs/a", b"one", 0)
        await store.compare_and_set("other", b"", 0)
        async with watching(store, "jobs/") as watch:
            assert await anext(watch) == {"jobs/a": Held(b"one", version or 0)}

    with_store(scenario)


def test_a_watch_shows_sets_and_deletions_with_their_versions(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        async with watching(store, "jobs/") as watch:
            assert await shown(watch) == {}
            second = await store.compare_and_set("jobs/b", b"one", 0)
            assert second
            assert await asyncio.wait_for(anext(watch), LIMIT) == {"jobs/b": Held(b"one", second)}
            first = await store.compare_and_set("jobs/a", b"two", 0)
            assert first
            content = await asyncio.wait_for(anext(watch), LIMIT)
            assert list(content) == ["jobs/a", "jobs/b"], "in the order of the keys"
            assert content == await store.read("jobs/")
            await store.delete("jobs/b", second)
            assert await asyncio.wait_for(anext(watch), LIMIT) == {"jobs/a": Held(b"two", first)}
            again = await store.compare_and_set("jobs/a", b"two", first)
            assert again
            assert await asyncio.wait_for(anext(watch), LIMIT) == {"jobs/a": Held(b"two", again)}

    with_store(scenario)


def test_a_watch_does_not_wake_for_other_keys(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        async with watching(store, "jobs/") as watch:
            assert await shown(watch) == {}
            for key in ("job", "jobs", "jobs0", "zzz"):
                assert await store.compare_and_set(key, b"", 0)
            await store.compare_and_set("jobs/a", b"one", 0)
            assert await shown(watch) == {"jobs/a": b"one"}

    with_store(scenario)


def test_a_watch_shows_the_end_of_a_lease(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        await store.compare_and_set("servers/a", b"", 0, lease=await store.grant(1.0))
        await store.compare_and_set("servers/b", b"", 0)
        async with watching(store, "servers/") as watch:
            assert await shown(watch) == {"servers/a": b"", "servers/b": b""}
            assert await shown(watch) == {"servers/b": b""}

    with_store(scenario)


def test_changes_while_nobody_asks_come_as_few_contents(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        async with watching(store, "jobs/") as watch:
            assert await shown(watch) == {}
            version = 0
            for number in range(100):
                version = await store.compare_and_set("jobs/a", b"%d" % number, version) or 0
            assert await shown_in_the_end(watch, {"jobs/a": b"99"}) < 50

    with_store(scenario)


def test_a_watch_keeps_up_with_two_servers_that_write(make_store: MakeStore) -> None:
    async def write(store: Store, name: str) -> None:
        version = 0
        for number in range(50):
            version = await store.compare_and_set(f"jobs/{name}", b"%d" % number, version) or 0

    async def scenario() -> None:
        one, other = make_store(), make_store()
        async with watching(one, "jobs/") as here, watching(other, "jobs/") as there:
            wanted = {"jobs/a": b"49", "jobs/b": b"49"}
            await asyncio.gather(
                write(one, "a"),
                write(other, "b"),
                shown_in_the_end(here, wanted),
                shown_in_the_end(there, wanted),
            )
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_a_watch_can_be_left_while_it_waits(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        async with watching(store, "jobs/") as watch:
            assert await shown(watch) == {}
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
        assert await store.compare_and_set("jobs/a", b"", 0)
        assert len(asyncio.all_tasks()) <= 2, "this one, and the one with its time limit"

    with_store(scenario)


def test_a_content_that_was_shown_belongs_to_the_reader(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        async with watching(store, "jobs/") as watch:
            (await anext(watch))["jobs/x"] = Held(b"", 1)
            await store.compare_and_set("jobs/a", b"one", 0)
            content = await asyncio.wait_for(anext(watch), LIMIT)
            assert list(content) == ["jobs/a"]
            content.clear()
            await store.compare_and_set("jobs/b", b"two", 0)
            assert await shown(watch) == {"jobs/a": b"one", "jobs/b": b"two"}

    with_store(scenario)
