"""Output that a slow console has yet to take, in a file without a name: a terminal may be slower than the training prints."""

from __future__ import annotations

import os
import tempfile
from collections import deque

from .sinks import Sink

_AT_ONCE = 1 << 20  # bytes


class Spool:
    """First in, first out. `size` are the bytes in it."""

    def __init__(self) -> None:
        self.size = 0
        self._file = -1
        self._read_at = 0
        self._written_to = 0
        self._index: deque[tuple[Sink, int]] = deque()

    def put(self, sink: Sink, data: bytes) -> None:
        """OSError if there is no room for the file, or no place for it; then nothing has been put."""
        if self._file < 0:
            self._file = _nameless_file()
        view, at = memoryview(data), self._written_to
        while view:
            written = os.pwrite(self._file, view, at)
            view, at = view[written:], at + written
        self._written_to = at
        self.size += len(data)
        if self._index and self._index[-1][0] is sink:
            self._index[-1] = (sink, self._index[-1][1] + len(data))
        else:
            self._index.append((sink, len(data)))

    def take(self) -> tuple[Sink, bytes]:
        """The next bytes for one sink. There must be some. OSError if the file cannot be read."""
        sink, length = self._index[0]
        data = os.pread(self._file, min(length, _AT_ONCE), self._read_at)
        if len(data) == length:
            self._index.popleft()
        else:
            self._index[0] = (sink, length - len(data))
        self._read_at += len(data)
        self.size -= len(data)
        if self.size == 0:
            os.ftruncate(self._file, 0)
            self._read_at = self._written_to = 0
        return sink, data

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _nameless_file() -> int:
    """Gone with the process, however that ends."""
    descriptor, path = tempfile.mkstemp(prefix="elastic-output-")
    os.unlink(path)
    return descriptor
