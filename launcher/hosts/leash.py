"""The line on which a launcher holds its agent on a host: what is said over it, and what its end means.

The first line is the assignment; each further one is a word below. Its end means that the launcher, or the connection to
it, is gone: then nobody else would ever end this agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

DRAIN = b"drain\n"  # the workers leave the job in order, then the agent ends
END = b"end\n"  # at once
BEAT = b"\n"  # the launcher lives
BEAT_PERIOD = 30.0  # seconds
SILENCE = 600.0  # seconds without a word, after which the launcher counts as gone: it may have been stopped for a while

_CHUNK = 1 << 16  # bytes


def slots(count: int) -> bytes:
    """This host has room for so many workers from here on."""
    return b"slots %d\n" % count


def read_line(descriptor: int) -> tuple[bytes, bytes]:
    """The first line, and what has already come after it; the line is empty if the end came first."""
    data = b""
    while b"\n" not in data:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except OSError:  # it may have been closed from the beginning
            chunk = b""
        if not chunk:
            return b"", b""
        data += chunk
    line, _, rest = data.partition(b"\n")
    return line, rest


@dataclass(frozen=True)
class Held:
    """What the agent does when it is told so."""

    drain: Callable[[], None]
    end: Callable[[], None]
    resize: Callable[[int], None]
    lost: Callable[[str], None]


class Leash:
    """The agent's end of it. `lost` is called once, when it has ended or been silent for too long."""

    def __init__(self, descriptor: int, rest: bytes, held: Held, silence: float = SILENCE) -> None:
        self._descriptor = descriptor
        self._unfinished = b""
        self._held = held
        self._silence = silence
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)
        self._timer = self._loop.call_later(silence, self._lose, f"the launcher has said nothing for {silence:g} s")
        self._take(rest)

    def close(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._descriptor)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self._lose("the launcher, or the connection to it, is gone")

    def _take(self, data: bytes) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(
            self._silence, self._lose, f"the launcher has said nothing for {self._silence:g} s"
        )
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            self._do(line)

    def _do(self, line: bytes) -> None:
        word, _, value = line.partition(b" ")
        if line + b"\n" == DRAIN:
            self._held.drain()
        elif line + b"\n" == END:
            self._held.end()
        elif word == b"slots" and value.isdigit():
            self._held.resize(int(value))

    def _lose(self, why: str) -> None:
        self.close()
        self._held.lost(why)
