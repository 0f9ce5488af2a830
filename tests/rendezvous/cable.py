"""A cable between a client and a server that a test can block or cut: what a network does between two hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cable:
    """Listens at `endpoint` and carries bytes to another one. Blocked bytes are kept, as those of a lossy network are."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self.restore()

    @classmethod
    @asynccontextmanager
    async def laid(cls, to: str) -> AsyncIterator[Cable]:
        cable = cls(to)
        server = await asyncio.start_server(cable._connect, "127.0.0.1", 0)
        cable.endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield cable
        finally:
            server.close()
            cable.cut()

    endpoint = ""

    def block(self) -> None:
        """Nothing passes, and nobody is told."""
        self._there.clear()
        self._back.clear()

    def block_answers(self) -> None:
        self._back.clear()

    def restore(self) -> None:
        self._there.set()
        self._back.set()

    def cut(self) -> None:
        """Connections end, with what was on its way; later ones are carried."""
        for writer in self._open:
            writer.transport.abort()
        self.restore()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, to_writer}
        self._open |= ends
        await asyncio.gather(self._carry(reader, to_writer, self._there), self._carry(to_reader, writer, self._back))
        self._open -= ends

    @staticmethod
    async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        try:
            while data := await reader.read(65536):
                await passes.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()
