"""Writing without ever blocking the agent.

A terminal, a pipe or a network file may stop taking output for as long as it likes. So writing is the work of threads. What
waits for the console is kept in memory first, then in a file: a worker is not to wait for a slow terminal. Only when too much
waits altogether are the workers' pipes not read, which stops the workers' printing and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from .sinks import Sink
from .spool import Spool

FULL = 4 << 20  # bytes waiting in memory, from which on readers are asked to pause, or the spool is used
ROOM = 1 << 20  # bytes waiting, below which they may go on
SPOOL_FULL = 256 << 20  # bytes waiting in the spool, from which on readers are asked to pause
SPOOL_ROOM = SPOOL_FULL // 2
_BATCH = 1 << 20  # bytes that are joined
_PIECE = 1 << 16  # bytes written at once


class OutputThread:
    """Writes to any number of sinks, each in order. A daemon thread: a stuck terminal cannot hold the agent's end."""

    def __init__(self, complain: Callable[[str], None], name: str = "output", spool: Spool | None = None) -> None:
        """`complain` is told, on the thread, what has been lost."""
        self._complain = complain
        self._queue: deque[tuple[Sink, bytes | None]] = deque()
        self._spool = spool
        self._behind_the_spool: deque[tuple[Sink, bytes | None]] = deque()
        self._waiting = 0
        self._taken = 0
        self._broken: set[Sink] = set()
        self._pausing: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(self, sink: Sink, data: bytes) -> None:
        if data:
            self._put(sink, data)

    def close_sink(self, sink: Sink) -> None:
        """Closes it after everything before has been written."""
        self._put(sink, None)

    @property
    def is_full(self) -> bool:
        with self._changed:
            if self._spool is None:
                return self._waiting > FULL
            return bool(self._behind_the_spool) or self._spool.size > SPOOL_FULL

    def when_there_is_room(self, call: Callable[[], None]) -> None:
        """`call` is called once, on the thread, when there is room again."""
        with self._changed:
            if not self._has_room():
                self._pausing.append(call)
                return
        call()

    def close(self, limit: float) -> bool:
        """Ends the thread when everything is written; False if nothing of it could be written for `limit` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        taken, since = self._taken, time.monotonic()
        while self._thread.is_alive() and time.monotonic() < since + limit:
            self._thread.join(0.05)
            if self._taken != taken:
                taken, since = self._taken, time.monotonic()
        return not self._thread.is_alive()

    def _put(self, sink: Sink, data: bytes | None) -> None:
        with self._changed:
            if self._behind_the_spool:
                self._behind_the_spool.append((sink, data))
            elif self._spool is not None and (self._spool.size or self._waiting > FULL):
                try:
                    if data is None:
                        self._behind_the_spool.append((sink, data))
                    else:
                        self._spool.put(sink, data)
                except OSError:
                    self._behind_the_spool.append((sink, data))
            else:
                self._queue.append((sink, data))
                self._waiting += len(data or b"")
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._something_waits() and not self._closing:
                    self._changed.wait()
                if not self._something_waits():
                    return
                sink, data, of_memory = self._take()
            if data is None:
                sink.close()
                self._broken.discard(sink)
                continue
            self._write(sink, data)
            with self._changed:
                self._waiting -= of_memory
                waking = self._pausing if self._has_room() else []
                self._pausing = [] if waking else self._pausing
            for call in waking:
                call()

    def _write(self, sink: Sink, data: bytes) -> None:
        if sink in self._broken:
            return
        try:
            for start in range(0, len(data), _PIECE):
                sink.write(data[start : start + _PIECE])
                self._taken += 1
        except OSError as error:
            # A full disk, or nobody reads it any more: training goes on without.
            self._broken.add(sink)
            self._complain(f"output to {sink.name} is lost from here on: {error.strerror}")

    def _something_waits(self) -> bool:
        return bool(self._queue or self._behind_the_spool or (self._spool is not None and self._spool.size))

    def _has_room(self) -> bool:
        if self._spool is None:
            return self._waiting < ROOM
        return not self._behind_the_spool and self._spool.size < SPOOL_ROOM

    def _take(self) -> tuple[Sink, bytes | None, int]:
        """The next writes to one sink, joined; and how many bytes of it were in memory."""
        if not self._queue and self._spool is not None and self._spool.size:
            return (*self._spool.take(), 0)
        if not self._queue:
            self._queue, self._behind_the_spool = self._behind_the_spool, self._queue
            self._waiting += sum(len(data or b"") for _, data in self._queue)
        sink, data = self._queue.popleft()
        if data is None:
            return sink, None, 0
        parts, size = [data], len(data)
        while self._queue and self._queue[0][0] is sink and size < _BATCH:
            following = self._queue[0][1]
            if following is None:
                break
            self._queue.popleft()
            parts.append(following)
            size += len(following)
        return sink, b"".join(parts), size
