"""Waiting for what comes, or does not, in tasks that are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from elastic_launch.rendezvous.waiting import is_set_within, within


def test_an_event_is_waited_for_no_longer_than_asked() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        assert not await is_set_within(event, 0.01)
        asyncio.get_running_loop().call_later(0.01, event.set)
        assert await is_set_within(event, 20)
        assert await is_set_within(event, 0)
        assert await is_set_within(event, None)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_results_and_errors_come_through_and_what_takes_too_long_is_cancelled() -> None:
    async def scenario() -> None:
        assert await within(asyncio.sleep(0, "a"), 20) == "a"

        async def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await within(fail(), 20)
        with pytest.raises(asyncio.TimeoutError):
            await within(asyncio.sleep(600), 0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(4))
def test_a_cancellation_in_the_turn_in_which_the_event_is_set_counts(turns: int) -> None:
    async def scenario() -> None:
        event = asyncio.Event()

        async def look() -> None:
            while True:
                await is_set_within(event, 20)
                event.clear()

        looking = asyncio.ensure_future(look())
        for _ in range(3):
            await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        looking.cancel()
        await asyncio.wait([looking], timeout=5)
        assert looking.cancelled()

    asyncio.run(scenario())
