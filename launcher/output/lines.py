"""A stream of bytes as whole lines, each with a prefix."""

from __future__ import annotations

import re

LONGEST_LINE = 8 << 20  # bytes; a longer line is cut
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
