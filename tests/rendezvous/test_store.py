"""What every store promises, and the records kept in one. Another implementation joins by one more parameter below."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from elastic_launch.errors import RendezvousError
from elastic_launch.rendezvous.memory_store import MemoryStore
from elastic_launch.rendezvous.records import JobRecord, JobRecords, RecordConflict
from elastic_launch.rendezvous.store import Held, Store, StoreUnavailable

Scenario = Callable[[Store], Coroutine[Any, Any, None]]
With = Callable[[Scenario], None]


@pytest.fixture(params=[MemoryStore])
def with_store(request: pytest.FixtureRequest) -> With:
    """Runs a scenario on a fresh, empty store."""

    def run(scenario: Scenario) -> None:
        async def bracket() -> None:
            store = request.param()
            try:
                await scenario(store)
            finally:
                await store.close()
                await store.close()

        asyncio.run(bracket())

    return run


def test_an_absent_key_is_none(with_store: With) -> None:
    async def scenario(store: Store) -> None:
        assert await store.get("jobs/a") is None

    with_store(scenario)


def test_what_was_set_is_read_back_with_its_version(with_store: With) -> None:
    async def scenario(store: Store) -> None:
        version = await store.compare_and_set("jobs/a", b"\x00one", 0)
        assert version
        assert await store.get("jobs/a") == Held(b"\x00one", version)

    with_store(scenario)


def test_a_key_is_made_only_once(with_store: With) -> None:
    async def scenario(store: Store) -> None:
        assert await store.compare_and_set("jobs/a", b"one", 0)
        assert await store.compare_and_set("jobs/a", b"two", 0) is None
        held = await store.get("jobs/a")
        assert held is not None and held.value == b"one"

    with_store(scenario)


def test_versions_only_grow_and_an_old_one_changes_nothing(with_store: With) -> None:
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


def test_one_of_many_that_set_at_once_succeeds(with_store: With) -> None:
    async def scenario(store: Store) -> None:
        results = await asyncio.gather(*(store.compare_and_set("jobs/a", b"%d" % i, 0) for i in range(20)))
        assert sum(result is not None for result in results) == 1
        winner = next(i for i, result in enumerate(results) if result is not None)
        held = await store.get("jobs/a")
        assert held is not None and held.value == b"%d" % winner

    with_store(scenario)


def test_keys_are_listed_by_prefix(with_store: With) -> None:
    async def scenario(store: Store) -> None:
        for key in ("jobs/b", "jobs/a", "other/c"):
            await store.compare_and_set(key, b"", 0)
        assert list(await store.read("jobs/")) == ["jobs/a", "jobs/b"]
        assert await store.read("none/") == {}

    with_store(scenario)


def test_a_record_moves_from_generation_to_generation_to_done(with_store: With) -> None:
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


def test_a_record_moves_only_from_the_generation_that_was_last_seen(with_store: With) -> None:
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


def test_of_two_servers_that_move_a_record_at_once_one_is_refused(with_store: With) -> None:
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
