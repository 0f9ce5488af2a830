"""One traceback, shown once: when one worker fails, its peers fail for the same reason, or all do the same wrong thing at once.

The first worker's traceback is shown in full. Another worker's that reads the same, but for numbers, within a while is shown
as its last line. Files get everything.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

_START = b"Traceback (most recent call last):"
_RANK = re.compile(rb"^(\[rank\d+\]:? ?)?")  # which torch puts in front of each line
# What belongs to a traceback and stands behind its last line: what links it to the next one, and frames of C++.
_BELONGS = re.compile(rb"\s|During handling of the above|The above exception was the|Exception raised from|frame #\d")
_NUMBERS = re.compile(rb"0x[0-9a-f]+|[0-9a-f]{16,}|\d+")
_HELD = 256  # lines that a traceback may have before it is shown as it is
_FOLLOWING = 256  # lines behind a traceback that are remembered
_WHILE = 60.0  # seconds
_MOST_SHOWN = 100
_LONGEST_START = 64  # bytes


@dataclass
class _Shown:
    stream: Folder
    who: str
    at: float
    following: list[bytes] = field(default_factory=list)
    is_followed: bool = True


class Shown:
    """What the streams of one agent have shown."""

    def __init__(self) -> None:
        self.tracebacks: dict[tuple[bytes, ...], _Shown] = {}

    def find(self, lines: tuple[bytes, ...], stream: Folder) -> _Shown | None:
        """The same traceback of another stream."""
        found = self.tracebacks.get(lines)
        return found if found and found.stream is not stream and time.monotonic() - found.at < _WHILE else None

    def add(self, lines: tuple[bytes, ...], stream: Folder, who: str) -> _Shown:
        while len(self.tracebacks) >= _MOST_SHOWN:
            del self.tracebacks[next(iter(self.tracebacks))]
        shown = self.tracebacks[lines] = _Shown(stream, who, time.monotonic())
        return shown


class Folder:
    """One stream. What `feed` and `finish` return is to be shown, in order; nothing is held back but an unfinished traceback."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._unfinished = b""
        self._held: list[bytes] = []
        self._own: _Shown | None = None  # its last traceback, which is shown, and whose following lines are remembered
        self._other: list[bytes] = []  # what follows the other stream's, as long as this one says the same

    def feed(self, data: bytes, who: str) -> bytes:
        """`who` is whose stream it is, for people."""
        data = self._unfinished + data
        self._unfinished = b""
        if not self._waits_for_a_line() and _START[:9] not in data:
            # Only the last, unfinished line may still become the start of one.
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            rest = data[end:]
            if len(rest) < _LONGEST_START and _may_become_a_start(rest):
                self._unfinished = rest
                return data[:end]
            return data
        lines = data.split(b"\n")
        self._unfinished = lines.pop()
        shown = [piece for line in lines for piece in self._take(line + b"\n", who)]
        if not self._waits_for_a_line() and not _may_become_a_start(self._unfinished):
            shown.append(self._unfinished)
            self._unfinished = b""
        return b"".join(shown)

    def finish(self) -> bytes:
        """What is still held: the stream has ended."""
        rest = b"".join([*self._held, self._unfinished])
        self._held, self._unfinished = [], b""
        return rest

    def _waits_for_a_line(self) -> bool:
        """Not for one with a carriage return: that is a progress bar, and no part of a traceback."""
        return (
            bool(self._held or self._other or (self._own and self._own.is_followed)) and b"\r" not in self._unfinished
        )

    def _take(self, line: bytes, who: str) -> list[bytes]:
        body = _RANK.sub(b"", line)
        if self._held:
            return self._continue(line, body, who)
        if body.startswith(_START):
            self._held = [line]
            return []
        if self._other:
            if _normal(body) == self._other[0]:
                del self._other[0]
                return []
            self._other = []
        if self._own is not None and self._own.is_followed:
            self._own.is_followed = bool(_BELONGS.match(body)) and len(self._own.following) < _FOLLOWING
            if self._own.is_followed:
                self._own.following.append(_normal(body))
        return [line]

    def _continue(self, line: bytes, body: bytes, who: str) -> list[bytes]:
        """A line of, or at the end of, a traceback."""
        self._held.append(line)
        if body[:1] in (b" ", b"\t") and len(self._held) < _HELD:
            return []
        lines, self._held = self._held, []
        normal = tuple(_normal(_RANK.sub(b"", each)) for each in lines)
        same = self._shown.find(normal, self)
        if same is None:
            if self._own is not None:
                self._own.is_followed = False
            self._own = self._shown.add(normal, self, who)
            return lines
        self._other = [*same.following]
        return [line.rstrip(b"\r\n") + f"  (the traceback is the same as that of {same.who})\n".encode()]


def _normal(line: bytes) -> bytes:
    return _NUMBERS.sub(b"#", line.rstrip())


def _may_become_a_start(line: bytes) -> bool:
    body = _RANK.sub(b"", line)
    return _START.startswith(body) or body.startswith(_START) or b"[rank".startswith(line[:5])
