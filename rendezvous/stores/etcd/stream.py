"""One two-way stream to an etcd member (watches and lease renewals are such), with a limit on every wait."""

from __future__ import annotations

import asyncio
from typing import Any

from .answers import EtcdError, Meaning
from .api import grpc


class EtcdStream:
    """A stream of gRPC. Its end, however it comes, is an EtcdError; a cancelled task of the caller stays one."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def send(self, request: Any, seconds: float) -> None:
        writing = asyncio.ensure_future(self._call.write(request))
        try:
            if not await _finishes(writing, seconds):
                raise EtcdError(Meaning.UNKNOWN, f"took no request for {seconds:.1f} s")
            await self._outcome(writing)
        finally:
            await _end(writing)

    async def receive(self, seconds: float) -> Any:
        """The next response, or None if none comes within `seconds`; it may come at the next call."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        if not await _finishes(self._reading, seconds):
            return None
        reading, self._reading = self._reading, None
        response = await self._outcome(reading)
        if response is grpc.aio.EOF:
            raise EtcdError.of(await self._call.code(), await self._call.details())
        return response

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await _end(self._reading)

    async def _outcome(self, done: asyncio.Task[Any]) -> Any:
        if done.cancelled():  # not the caller: the channel was closed
            raise EtcdError(Meaning.UNKNOWN, "the connection was closed")
        try:
            return done.result()
        except grpc.aio.AioRpcError as error:
            raise EtcdError.of(error.code(), error.details()) from None
        except asyncio.InvalidStateError:  # a request to a stream that has ended
            raise EtcdError.of(await self._call.code(), await self._call.details()) from None


async def _finishes(task: asyncio.Task[Any], seconds: float) -> bool:
    await asyncio.wait({task}, timeout=seconds)
    return task.done()


async def _end(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # seen, so that asyncio does not complain
