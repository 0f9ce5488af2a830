"""What a copy moves, seen from the wire: one long row of bytes, cut into chunks that are read and written in place.

The wire knows only the two protocols here, so that any framework whose buffers give a memoryview can be copied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol


class Cursor(Protocol):
    """One thread's access to a payload. `start` and `stop` are byte positions in the whole row."""

    def load(self, start: int, stop: int) -> list[memoryview]:
        """The bytes to send, valid until the next call."""

    def room(self, start: int, stop: int) -> list[memoryview]:
        """Memory to receive into, valid until the next call."""

    def store(self, start: int, stop: int) -> None:
        """`room` has been filled."""


class Payload(Protocol):
    """A fixed number of bytes. Cursors of different threads are used at the same time, on different positions."""

    @property
    def nbytes(self) -> int: ...

    def cursor(self) -> Cursor: ...


class Buffers:
    """A payload that lies in this process's memory; it is its own cursor, because nothing is staged."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = [view.cast("B") for view in views if view.nbytes]
        self._ends = cumulated(view.nbytes for view in self._views)
        self.nbytes = self._ends[-1] if self._ends else 0

    def cursor(self) -> Buffers:
        return self

    def load(self, start: int, stop: int) -> list[memoryview]:
        return [self._views[i][begin:end] for i, begin, end in cut(self._ends, start, stop)]

    room = load

    def store(self, start: int, stop: int) -> None:
        pass


def cumulated(sizes: Iterable[int]) -> list[int]:
    ends: list[int] = []
    total = 0
    for size in sizes:
        total += size
        ends.append(total)
    return ends


def cut(ends: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Which parts of consecutive pieces, given by their ends, make up [start, stop): (index, begin, end) in each."""
    parts = []
    index = bisect_right(ends, start)
    while start < stop:
        begins = ends[index - 1] if index else 0
        end = min(stop, ends[index])
        if end > start:
            parts.append((index, start - begins, end - begins))
        start, index = end, index + 1
    return parts
