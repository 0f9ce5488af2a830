"""One output pipe of a worker: reads it, passes it on, keeps its end for the report of a crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...rendezvous.waiting import is_set_within
from .prefixes import Label

if TYPE_CHECKING:
    from .room import Destination

_CHUNK = 1 << 16  # bytes
_MOST_AT_ONCE = 64  # chunks: more than a pipe holds
_TAIL = 1 << 14  # bytes
_TAIL_LINES = 30


class WorkerOutput:
    """Takes over `pipe` (the reading end) and closes it. `label` says whose output it is at the time."""

    def __init__(self, pipe: int, label: Callable[[], Label], destination: Destination) -> None:
        self._pipe = pipe
        self._label = label
        self._destination = destination
        self._end_of_output = b""
        self._ended = asyncio.Event()
        self._draining = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    def tail(self) -> str:
        """The last lines."""
        lines = self._end_of_output.decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def read_what_is_there(self) -> None:
        """Without waiting."""
        for _ in range(_MOST_AT_ONCE):
            if self._ended.is_set() or not self._read():
                return

    async def drain(self, limit: float) -> None:
        """Reads what is left, for at most `limit` seconds: a process that has escaped may hold the other end for ever."""
        self._draining = True
        if not self._ended.is_set():
            self._loop.add_reader(self._pipe, self._read)
            await is_set_within(self._ended, limit)
        self._end()
        self._destination.finish(self._label())

    def _read(self) -> bool:
        """False if there was nothing."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._end_of_output = (self._end_of_output + data)[-_TAIL:]
        self._destination.write(data, self._label())
        full = None if self._draining else self._destination.full_thread()
        if full is not None:
            self._loop.remove_reader(self._pipe)
            full.when_there_is_room(self._wake)
        return True

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if not self._ended.is_set():
            self._loop.add_reader(self._pipe, self._read)

    def _end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
