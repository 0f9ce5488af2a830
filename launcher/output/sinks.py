"""Where output goes: a descriptor that was handed to us, or a file of ours that is begun anew when it has become long."""

from __future__ import annotations

import itertools
import os
import select
from pathlib import Path
from typing import Protocol

LONGEST_OVERHANG = 8 << 20  # bytes of an unfinished line that a file may be longer than it should be


class Sink(Protocol):
    """Used by one thread."""

    name: str

    def write(self, data: bytes) -> None:
        """All of it. May block; OSError."""

    def close(self) -> None: ...


class Descriptor:
    """Is not closed by us, unless it is said to be ours."""

    def __init__(self, number: int, name: str, is_ours: bool = False) -> None:
        self.name = name
        self._number = number
        self._is_ours = is_ours

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._number, view) :]
            except BlockingIOError:  # the descriptor was handed to us in non-blocking mode
                select.select([], [self._number], [])

    def close(self) -> None:
        if self._is_ours:
            os.close(self._number)


class LogFile:
    """Appends to `path`. When it would get longer than `most_bytes` it is renamed to PATH.1, that one to PATH.2, and so on.

    There are `files` in all; what would be one more is deleted. A line is never in two files, so that one which was begun may
    be ended behind the limit. 0 `most_bytes`: no limit.
    """

    def __init__(self, path: Path, most_bytes: int = 0, files: int = 2) -> None:
        """OSError if it cannot be opened."""
        self.name = str(path)
        self._path = path
        self._most_bytes = most_bytes
        self._files = files
        self._in_a_line = False
        self._open()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = self._fitting(data[-len(view) :]) if self._most_bytes else len(view)
            if count == 0:
                self._begin_anew()
                continue
            self._append(view[:count])
            self._in_a_line = view[count - 1] != 0x0A
            view = view[count:]

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._descriptor).st_size

    def _append(self, view: memoryview) -> None:
        while view:
            written = os.write(self._descriptor, view)
            self._size += written
            view = view[written:]

    def _fitting(self, data: bytes) -> int:
        """How many bytes of `data` belong into this file; 0 if a fresh one is to be begun."""
        room = self._most_bytes - self._size
        if len(data) <= room:
            return len(data)
        whole_lines = data.rfind(b"\n", 0, max(0, room)) + 1
        if whole_lines:
            return whole_lines
        if self._size == 0 or (self._in_a_line and -room < LONGEST_OVERHANG):
            return data.find(b"\n") + 1 or len(data)
        return 0

    def _begin_anew(self) -> None:
        os.close(self._descriptor)
        older = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, self._files))]
        for source, target in reversed([*itertools.pairwise(older)]):
            if source.exists():
                source.replace(target)
        if self._files == 1:
            self._path.unlink(missing_ok=True)
        self._in_a_line = False
        self._open()
