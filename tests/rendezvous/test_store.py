"""What every store promises of values and fences, and the records kept in one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elastic_launch.errors import RendezvousError
from elastic_launch.rendezvous.stores.memory import MemoryStore
from elastic_launch.rendezvous.stores.records import JobRecord, JobRecords, RecordConflict
from elastic_launch.rendezvous.stores.store import Fence, FenceLost, Held, Store, StoreUnavailable

from .conftest import MakeStore, WithStore


def test_an_absent_key_is_none(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        assert await store.get("jobs/a") is None

    with_store(scenario)


def test_what_was_set_is_read_back_with_its_version(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        version = await store.compare_and_set("jobs/a", b"\x00one", 0)
        assert version
        assert await store.get("jobs/a") == Held(b"\x00one", version)

    with_store(scenario)


def test_a_key_is_made_only_once(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        assert await store.compare_and_set("jobs/a", b"one", 0)
        assert await store.compare_and_set("jobs/a", b"two", 0) is None
        held = await store.get("jobs/a")
        assert held is not None and held.value == b"one"

    with_store(scenario)


def test_versions_only_grow_and_an_old_one_changes_nothing(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        first = await store.compare_and_set("jobs/a", b"one", 0)
        assert first
        second = await store.compare_and_set("jobs/a", b"one", first)
        assert second and second > first, "the same value is a change as well"
        assert await store.compare_and_set("jobs/a", b"three", first) is None
        assert await store.compare_and_set("jobs/b", b"four", second) is None
        assert await store.get("jobs/a") == Held(b"one", second)
        assert await store.get("jobs/b") is None

    with_store(scenario)


def test_one_of_many_that_set_at_once_succeeds(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        results = await asyncio.gather(*(store.compare_and_set("jobs/a", b"%d" % i, 0) for i in range(20)))
        assert sum(result is not None for result in results) == 1
        winner = next(i for i, result in enumerate(results) if result is not None)
        held = await store.get("jobs/a")
        assert held is not None and held.value == b"%d" % winner

    with_store(scenario)


def test_keys_are_listed_by_prefix(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        for key in ("jobs/b", "jobs/a", "other/c"):
            await store.compare_and_set(key, b"", 0)
        assert list(await store.read("jobs/")) == ["jobs/a", "jobs/b"]
        assert await store.read("none/") == {}

    with_store(scenario)


def test_keys_are_read_in_their_order_whatever_the_order_of_their_making(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        keys = [f"jobs/{i * 7 % 450:03}" for i in range(450)]
        await asyncio.gather(*(store.compare_and_set(key, key.encode(), 0) for key in keys))
        content = await store.read("jobs/")
        assert list(content) == sorted(keys)
        assert all(held.value == key.encode() for key, held in content.items())

    with_store(scenario)


@pytest.mark.parametrize("value", [b"", bytes(range(256)) * 256], ids=["empty", "64 KiB"])
def test_a_value_is_any_bytes(with_store: WithStore, value: bytes) -> None:
    async def scenario(store: Store) -> None:
        version = await store.compare_and_set("jobs/a", value, 0)
        assert version and await store.get("jobs/a") == Held(value, version)

    with_store(scenario)


def test_a_key_is_deleted_at_its_version_only(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        first = await store.compare_and_set("jobs/a", b"one", 0)
        assert first
        second = await store.compare_and_set("jobs/a", b"two", first)
        assert second
        assert not await store.delete("jobs/a", first)
        assert not await store.delete("jobs/a", 0)
        assert not await store.delete("jobs/b", 0)
        assert await store.get("jobs/a") == Held(b"two", second)
        assert await store.delete("jobs/a", second)
        assert not await store.delete("jobs/a", second)
        assert await store.get("jobs/a") is None

    with_store(scenario)


def test_a_key_made_again_has_a_greater_version(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        first = await store.compare_and_set("jobs/a", b"one", 0)
        assert first and await store.delete("jobs/a", first)
        again = await store.compare_and_set("jobs/a", b"one", 0)
        assert again and again > first

    with_store(scenario)


def test_a_change_goes_through_while_its_fence_stands(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        leader = await store.compare_and_set("leader", b"a", 0)
        assert leader
        version = await store.compare_and_set("jobs/a", b"one", 0, fence=Fence("leader", leader))
        assert version
        assert await store.compare_and_set("jobs/a", b"two", 0, fence=Fence("leader", leader)) is None
        assert not await store.delete("jobs/a", version + 1, fence=Fence("leader", leader))
        assert await store.delete("jobs/a", version, fence=Fence("leader", leader))

    with_store(scenario)


def test_a_change_behind_a_lost_fence_is_refused_and_changes_nothing(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        first = await store.compare_and_set("leader", b"a", 0)
        assert first
        job = await store.compare_and_set("jobs/a", b"one", 0)
        assert job
        assert await store.compare_and_set("leader", b"b", first)
        for version in (job, 0):  # a lost fence goes before a version that does not fit
            with pytest.raises(FenceLost, match="'leader' is not at version"):
                await store.compare_and_set("jobs/a", b"two", version, fence=Fence("leader", first))
            with pytest.raises(FenceLost):
                await store.delete("jobs/a", version, fence=Fence("leader", first))
        assert await store.get("jobs/a") == Held(b"one", job)

    with_store(scenario)


def test_a_deleted_fence_is_lost_and_an_absent_one_has_version_0(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        assert await store.compare_and_set("jobs/a", b"one", 0, fence=Fence("leader", 0))
        leader = await store.compare_and_set("leader", b"a", 0)
        assert leader
        with pytest.raises(FenceLost):
            await store.compare_and_set("jobs/b", b"one", 0, fence=Fence("leader", 0))
        assert await store.delete("leader", leader)
        with pytest.raises(FenceLost):
            await store.compare_and_set("jobs/b", b"one", 0, fence=Fence("leader", leader))
        assert await store.get("jobs/b") is None

    with_store(scenario)


def test_two_servers_count_on_without_losing_one(make_store: MakeStore) -> None:
    async def count(store: Store, times: int) -> None:
        for _ in range(times):
            while True:
                held = await store.get("count")
                number, version = (int(held.value), held.version) if held else (0, 0)
                if await store.compare_and_set("count", b"%d" % (number + 1), version):
                    break

    async def scenario() -> None:
        one, other = make_store(), make_store()
        await asyncio.gather(*(count(store, 15) for store in (one, other, one, other)))
        held = await one.get("count")
        assert held is not None and held.value == b"60"
        assert await other.get("count") == held
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_of_two_leaders_only_the_one_that_stands_writes(make_store: MakeStore) -> None:
    async def scenario() -> None:
        old, new = make_store(), make_store()
        first = await old.compare_and_set("leader", b"old", 0)
        assert first
        version = await old.compare_and_set("jobs/a", b"1", 0, fence=Fence("leader", first))
        assert version
        second = await new.compare_and_set("leader", b"new", first)
        assert second
        results = await asyncio.gather(
            old.compare_and_set("jobs/a", b"2 of old", version, fence=Fence("leader", first)),
            new.compare_and_set("jobs/a", b"2 of new", version, fence=Fence("leader", second)),
            return_exceptions=True,
        )
        assert isinstance(results[0], FenceLost) and isinstance(results[1], int)
        held = await old.get("jobs/a")
        assert held is not None and held.value == b"2 of new"
        await old.close()
        await new.close()

    asyncio.run(scenario())


def test_a_record_moves_from_generation_to_generation_to_done(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        records = JobRecords(store, "digits")
        assert await records.load() == JobRecord()
        await records.move_to_generation(1, ["a", "b"], previous=0)
        await records.move_to_generation(4, ["b"], previous=1)
        assert await JobRecords(store, "digits").load() == JobRecord(4, ["b"])
        assert await JobRecords(store, "other").load() == JobRecord()
        await records.move_to_done()
        await records.move_to_done()
        assert await records.load() == JobRecord(4, ["b"], done=True)

    with_store(scenario)


def test_a_record_moves_only_from_the_generation_that_was_last_seen(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        records = JobRecords(store, "digits")
        await records.move_to_generation(2, ["a"], previous=0)
        with pytest.raises(RecordConflict, match="has formed generation 2") as raised:
            await records.move_to_generation(3, ["b"], previous=1)
        assert raised.value.found == JobRecord(2, ["a"])
        await records.move_to_done()
        with pytest.raises(RecordConflict, match="is done"):
            await records.move_to_generation(3, ["a"], previous=2)

    with_store(scenario)


def test_of_two_servers_that_move_a_record_at_once_one_is_refused(with_store: WithStore) -> None:
    async def scenario(store: Store) -> None:
        results = await asyncio.gather(
            *(JobRecords(store, "digits").move_to_generation(1, [worker], previous=0) for worker in "abc"),
            return_exceptions=True,
        )
        assert sorted(str(type(result).__name__) for result in results) == [
            "NoneType",
            "RecordConflict",
            "RecordConflict",
        ]

    with_store(scenario)


class _AnswerLost(MemoryStore):
    """Carries out the first change, and then says that it does not know."""

    has_failed = False

    async def compare_and_set(self, key: str, value: bytes, version: int, **options: Any) -> int | None:
        result = await super().compare_and_set(key, value, version, **options)
        if not self.has_failed:
            self.has_failed = True
            raise StoreUnavailable("no answer")
        return result


def test_a_change_whose_answer_was_lost_may_be_asked_for_again() -> None:
    async def scenario() -> None:
        records = JobRecords(_AnswerLost(), "digits")
        with pytest.raises(StoreUnavailable):
            await records.move_to_generation(1, ["a"], previous=0)
        await records.move_to_generation(1, ["a"], previous=0)
        assert await records.load() == JobRecord(1, ["a"])

    asyncio.run(scenario())


def test_a_damaged_record_is_named() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.compare_and_set("jobs/digits", b"{", 0)
        with pytest.raises(RendezvousError, match="record of job 'digits' in the store is damaged"):
            await JobRecords(store, "digits").load()

    asyncio.run(scenario())
