"""The agent's end of the line to one worker: a socketpair, one JSON message a line in both directions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import msgspec

from ..rendezvous.messages import FromWorker, ToWorker, decode_from_worker, encode

_CHUNK = 1 << 16  # bytes
LONGEST_LINE = 1 << 20  # bytes


class ControlLine:
    """`on_message` gets what the worker says, `on_nonsense` what is wrong with what cannot be understood."""

    def __init__(
        self,
        line: socket.socket,
        on_message: Callable[[FromWorker], None],
        on_nonsense: Callable[[str], None],
    ) -> None:
        self._line = line
        self._on_message = on_message
        self._on_nonsense = on_nonsense
        self._received = bytearray()
        self._unsent = bytearray()
        self._reading = True
        self._loop = asyncio.get_running_loop()
        line.setblocking(False)
        self._loop.add_reader(line, self._read)

    def send(self, message: ToWorker) -> None:
        """Never blocks: what a stopped worker does not take waits here. Without effect if the worker is gone."""
        if self._line.fileno() < 0:
            return
        self._unsent += encode(message) + b"\n"
        self._flush()

    def read_what_is_left(self) -> None:
        """Takes the last messages of a worker that has just died."""
        while self._reading and self._read():
            pass

    def close(self) -> None:
        if self._line.fileno() >= 0:
            self._stop_reading()
            self._loop.remove_writer(self._line)
            self._line.close()

    def _flush(self) -> None:
        try:
            del self._unsent[: self._line.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the worker is gone, which its process's end tells
        if self._unsent:
            self._loop.add_writer(self._line, self._flush)
        else:
            self._loop.remove_writer(self._line)

    def _read(self) -> bool:
        """False if there was nothing to read."""
        try:
            data = self._line.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop_reading()
            return False
        self._received += data
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        for line in lines:
            self._take(line)
        if len(self._received) > LONGEST_LINE:
            self._on_nonsense(f"a message of more than {LONGEST_LINE} bytes; nothing more is read")
            self._stop_reading()
        return True

    def _take(self, line: bytes) -> None:
        try:
            message: FromWorker = decode_from_worker(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._on_nonsense(f"{error}: {line[:200]!r}")
            return
        self._on_message(message)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._line)
