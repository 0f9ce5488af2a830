"""Waiting for a limited time in tasks that may be cancelled.

Before Python 3.12 `asyncio.wait_for` swallows a cancellation that comes in the turn in which what it waits for is there: a
loop around it would go on for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(what: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """Its result. Cancels it, and raises `asyncio.TimeoutError`, if it takes longer; None is no limit."""
    task = asyncio.ensure_future(what)
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether the event is set, or will be in that time."""
    try:
        return await within(event.wait(), seconds)
    except asyncio.TimeoutError:
        return event.is_set()
