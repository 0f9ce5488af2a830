"""A line between two programs that can be cut without a word: what is sent into it goes nowhere, and nothing is closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Line:
    """Forwards connections to HOST:PORT; `endpoint` is its own. `cut` and `mend` take effect at once, on all of them."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = threading.Event()
        self._open.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop).result(
            5
        )
        self.endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def drop(self) -> None:
        """Reset every connection, as a load balancer that is restarted does; new ones are taken."""

        def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def close(self) -> None:
        async def end() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await self._until_open()
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers.add(back)
        try:
            await asyncio.gather(self._forward(reader, back), self._forward(there, writer))
        finally:
            self._writers -= {writer, back}

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._until_open()
                writer.write(data)
                await writer.drain()
        await self._until_open()
        with contextlib.suppress(OSError):
            writer.close()

    async def _until_open(self) -> None:
        while not self._open.is_set():
            await asyncio.sleep(0.02)
