"""What has happened in a job, newest last: bounded, numbered, and to be followed by any number of readers.

A reader remembers the last event that it has seen, nothing is kept for it. So a slow reader misses what has been pushed out
meanwhile, and costs nobody anything.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from .membership.effects import Event
from .waiting import is_set_within


class History:
    """The last `keep` events. Their ids begin with a word of this history's own: another server's are not taken for it."""

    def __init__(self, keep: int) -> None:
        self.closed = False
        """Whether nothing follows any more."""
        self._events: deque[dict[str, Any]] = deque(maxlen=keep)
        self._word = secrets.token_hex(4)
        self._count = 0
        self._news = asyncio.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._events)

    def add(self, event: Event) -> None:
        self._count += 1
        named = {"id": f"{self._word}-{self._count}", "time": time.time(), "kind": event.kind, "text": event.text}
        self._events.append({**event.fields, **named})
        self._wake()

    def after(self, identifier: str) -> list[dict[str, Any]]:
        """What has come after the event of that id, or everything if it is not one of this history's."""
        word, _, number = identifier.rpartition("-")
        known = word == self._word and len(number) < 20 and number.isascii() and number.isdecimal()
        missing = self._count - int(number) if known else len(self._events)
        if missing < 0:
            missing = len(self._events)
        return [*self._events][max(0, len(self._events) - missing) :]

    async def news(self, timeout: float) -> bool:
        """Waits until something is added, or the history is closed. False if that took more than `timeout` seconds."""
        return await is_set_within(self._news, timeout)

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        """Everybody who waits, and nobody who comes later."""
        self._news.set()
        self._news = asyncio.Event()
