"""A job's events as they happen, for readers over HTTP (server-sent events).

A reader's connection is its own business: it is written to as fast as it reads, and nothing is kept for it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from fastapi import HTTPException
from fastapi.sse import format_sse_event

from ..history import History

KEEPALIVE = 15.0  # seconds
_RETRY = 1000  # milliseconds until a reader whose connection ended comes again


class Streams:
    """Counts those who follow, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit

    def follow(self, history: History, last: str) -> AsyncIterator[bytes]:
        """What comes after the event with the id `last`, until the history ends. 503 if too many follow already."""
        if self.count >= self._limit:
            raise HTTPException(503, f"{self._limit} readers follow events already, which is the limit")
        return self._follow(history, last)

    async def _follow(self, history: History, last: str) -> AsyncIterator[bytes]:
        self.count += 1
        try:
            yield format_sse_event(comment="events follow", retry=_RETRY)
            while True:
                for event in history.after(last):
                    last = event["id"]
                    yield format_sse_event(data_str=json.dumps(event), event=event["kind"], id=last)
                if history.closed:
                    return
                if not history.after(last) and not await history.news(KEEPALIVE):
                    yield format_sse_event(comment="still here")
        finally:
            self.count -= 1
