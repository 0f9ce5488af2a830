"""The workers' output on its way to the agent's own: whole lines, each with a prefix, without ever blocking the agent.

A terminal, a pipe or a network file may stop taking output for as long as it likes. So writing is the work of one thread,
and when too much waits for it the workers' pipes are not read, which stops the workers' printing and nothing else.
"""

from __future__ import annotations

import os
import re
import select
import threading
from collections import deque
from collections.abc import Callable

FULL = 4 << 20  # bytes waiting, from which on readers are asked to pause
ROOM = 1 << 20  # bytes waiting, below which they may go on
LONGEST_LINE = 8 << 20  # bytes; a longer line is cut
_BATCH = 1 << 20  # bytes written at once
_END_OF_LINE = re.compile(rb"(\r\n|\n|\r(?!\n))(?=.)", re.DOTALL)


class LinePrefixer:
    """Puts a prefix in front of every line of a stream of bytes, and holds an unfinished line back.

    A line ends with a newline, a carriage return (progress bars) or both. Nothing else is changed.
    """

    def __init__(self) -> None:
        self._unfinished = bytearray()

    def feed(self, data: bytes, prefix: bytes) -> bytes:
        """The lines that `data` completes."""
        carriage_returns = b"\r" in data or self._unfinished.endswith(b"\r")
        self._unfinished += data
        end = self._unfinished.rfind(b"\n") + 1
        if carriage_returns:
            # A carriage return at the very end may be the first half of a line's end.
            end = max(end, self._unfinished.rfind(b"\r", 0, len(self._unfinished) - 1) + 1)
        if end == 0:
            return self._cut(prefix)
        lines = bytes(self._unfinished[:end])
        del self._unfinished[:end]
        if carriage_returns:
            return prefix + _END_OF_LINE.sub(lambda match: match[1] + prefix, lines)
        return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"

    def finish(self, prefix: bytes) -> bytes:
        """What is left, as a line; empty if the stream ended with a whole one."""
        rest = bytes(self._unfinished)
        self._unfinished.clear()
        return prefix + rest + b"\n" if rest else b""

    def _cut(self, prefix: bytes) -> bytes:
        return self.finish(prefix) if len(self._unfinished) > LONGEST_LINE else b""


class OutputThread:
    """Writes to any number of descriptors, each in order. A daemon thread: a stuck terminal cannot hold the agent's end."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, bytes | None]] = deque()
        self._waiting = 0
        self._broken: set[int] = set()
        self._pausing: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def write(self, descriptor: int, data: bytes) -> None:
        if data:
            self._put(descriptor, data)

    def close_descriptor(self, descriptor: int) -> None:
        """Closes it after everything before has been written."""
        self._put(descriptor, None)

    @property
    def is_full(self) -> bool:
        return self._waiting > FULL

    def when_there_is_room(self, call: Callable[[], None]) -> None:
        """`call` is called once, on the thread, when there is room again."""
        with self._changed:
            if self._waiting >= ROOM:
                self._pausing.append(call)
                return
        call()

    def close(self, limit: float) -> bool:
        """Ends the thread when everything is written; False if that took longer than `limit` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit)
        return not self._thread.is_alive()

    def _put(self, descriptor: int, data: bytes | None) -> None:
        with self._changed:
            self._queue.append((descriptor, data))
            self._waiting += len(data or b"")
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                descriptor, data = self._take()
            if data is None:
                os.close(descriptor)
                self._broken.discard(descriptor)
                continue
            if descriptor not in self._broken:
                try:
                    _write_all(descriptor, data)
                except OSError as error:
                    self._lose(descriptor, error)
            with self._changed:
                self._waiting -= len(data)
                waking = self._pausing if self._waiting < ROOM else []
                self._pausing = [] if waking else self._pausing
            for call in waking:
                call()

    def _lose(self, descriptor: int, error: OSError) -> None:
        """A full disk, or nobody reads it any more: training goes on without."""
        self._broken.add(descriptor)
        if descriptor != 2:
            text = f"elastic-launch: output to descriptor {descriptor} is lost from here on: {error.strerror}\n"
            self.write(2, text.encode())

    def _take(self) -> tuple[int, bytes | None]:
        """The next writes to one descriptor, joined."""
        descriptor, data = self._queue.popleft()
        if data is None:
            return descriptor, None
        parts, size = [data], len(data)
        while self._queue and self._queue[0][0] == descriptor and size < _BATCH:
            following = self._queue[0][1]
            if following is None:
                break
            self._queue.popleft()
            parts.append(following)
            size += len(following)
        return descriptor, b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # the descriptor was handed to us in non-blocking mode
            select.select([], [descriptor], [])
