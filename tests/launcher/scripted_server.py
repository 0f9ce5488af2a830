"""A rendezvous server for tests: welcomes agents, keeps what they say, and says what the test tells it to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve

from elastic_launch.rendezvous.messages import (
    Done,
    Exited,
    Failed,
    Hello,
    Message,
    Welcome,
    decode_to_server,
    encode,
)

Kind = TypeVar("Kind", bound=Message)
WITHIN = 40.0  # seconds


class ScriptedServer:
    """One agent at a time. `answer` may be replaced to react to messages; by default every exit 0 of all workers is `Done`."""

    def __init__(self, hang_timeout: float = 300.0) -> None:
        self.heard: list[Message] = []
        self.answers: list[Callable[[Message], Message | None]] = []
        self.hang_timeout = hang_timeout
        self._changed = threading.Condition()
        self._connection: ServerConnection | None = None
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(WITHIN)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def say(self, message: Message) -> None:
        asyncio.run_coroutine_threadsafe(self._say(message), self._loop).result(WITHIN)

    def hang_up(self) -> None:
        async def close() -> None:
            assert self._connection is not None
            await self._connection.close()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(WITHIN)

    def wait_for(self, kind: type[Kind], count: int = 1, within: float = WITHIN) -> list[Kind]:
        """The messages of this kind so far, at least `count`."""
        deadline = time.monotonic() + within
        with self._changed:
            while True:
                found = [message for message in self.heard if isinstance(message, kind)]
                if len(found) >= count:
                    return found
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"{count} {kind.__name__} awaited for {within} s, heard {self.heard}")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WITHIN)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server: Server
        async with serve(self._talk, "127.0.0.1", 0) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._started.set()
            await self._stop.wait()

    async def _talk(self, connection: ServerConnection) -> None:
        self._connection = connection
        async for text in connection:
            message: Any = decode_to_server(text)
            with self._changed:
                self.heard.append(message)
                self._changed.notify_all()
            if isinstance(message, Hello):
                await self._say(Welcome(30.0, hang_timeout=self.hang_timeout))
            for answer in self.answers:
                reply = answer(message)
                if reply is not None:
                    await self._say(reply)

    async def _say(self, message: Message) -> None:
        assert self._connection is not None
        await self._connection.send(encode(message).decode())


def done_when_all_are(count: int) -> Callable[[Message], Message | None]:
    """An answer: the job is done when `count` workers are."""
    ended: list[Exited] = []

    def answer(message: Message) -> Message | None:
        if isinstance(message, Exited) and message.kind == "done":
            ended.append(message)
            return Done() if len(ended) == count else None
        return None

    return answer


def fail_on_a_crash(message: Message) -> Message | None:
    """An answer: no budget for crashes."""
    if isinstance(message, Exited) and message.kind == "crash":
        return Failed(message.code, f"a worker crashed: {message.reason}", message.tail)
    return None
