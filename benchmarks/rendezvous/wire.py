"""A WebSocket's client end that costs little, so that thousands of them leave the server its core.

Just what a conversation with the server takes: whole text messages, pings and pongs, an abrupt end. Frames are masked with
zeros, which leaves a payload as it is.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_FINAL, _MASKED = 0x80, 0x80
_NO_MASK = bytes(4)


class Received:
    """What came from the server: bytes of TCP payload, and messages."""

    def __init__(self) -> None:
        self.bytes = 0
        self.messages = 0


class Line(asyncio.Protocol):
    """One connection. `on_text` gets every message, `on_lost` is called if the server ends it."""

    def __init__(self, received: Received, on_text: Callable[[bytes], None], on_lost: Callable[[str], None]) -> None:
        self._received = received
        self._on_text = on_text
        self._on_lost = on_lost
        self._buffer = b""
        self._closed_here = False
        self._transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, url: str) -> None:
        """`url` is ws://HOST:PORT/PATH. ConnectionError if the server does not take it."""
        parts = urlsplit(url)
        await asyncio.get_running_loop().create_connection(lambda: self, parts.hostname, parts.port)
        key = base64.b64encode(os.urandom(16)).decode()
        request = (
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert self._transport is not None
        self._transport.write(request.encode())
        await self.opened

    def send(self, text: bytes) -> None:
        self._send(_TEXT, text)

    def ping(self) -> None:
        self._send(_PING, b"beat")

    def reset(self) -> None:
        """As the kernel ends the connections of a process that was killed with unread input: RST."""
        self._closed_here = True
        assert self._transport is not None
        self._transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self._transport.abort()

    # --- asyncio's side --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closed_here:
            self._on_lost(str(error or "the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._received.bytes += len(data)
        data = self._buffer + data if self._buffer else data
        if not self.opened.done():
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._buffer = head
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                self.opened.set_exception(ConnectionError(head.decode(errors="replace")))
                return
            self.opened.set_result(None)
        self._buffer = self._take_frames(data)

    def _take_frames(self, data: bytes) -> bytes:
        """The incomplete frame at the end."""
        at = 0
        while len(data) - at >= 2:
            start, length = at + 2, data[at + 1]
            if length == 126:
                start, length = at + 4, int.from_bytes(data[at + 2 : at + 4], "big")
            elif length == 127:
                start, length = at + 10, int.from_bytes(data[at + 2 : at + 10], "big")
            if len(data) < start + length:
                break
            self._take_frame(data[at], data[start : start + length])
            at = start + length
        return data[at:]

    def _take_frame(self, first: int, payload: bytes) -> None:
        kind = first & 0x0F
        if kind == _TEXT and first & _FINAL:
            self._received.messages += 1
            self._on_text(payload)
        elif kind == _PING:
            self._send(_PONG, payload)
        elif kind not in (_PONG, _CLOSE):
            raise ValueError(f"the server sends frames of a kind that is not read here: {first:#x}")

    def _send(self, kind: int, payload: bytes) -> None:
        assert self._transport is not None
        size = len(payload)
        length = bytes([_MASKED | size]) if size < 126 else bytes([_MASKED | 126]) + size.to_bytes(2, "big")
        self._transport.write(bytes([_FINAL | kind]) + length + _NO_MASK + payload)
