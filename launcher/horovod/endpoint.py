"""What horovodrun's rendezvous server is to Horovod's workers: key-value paths over plain HTTP, on this host's loopback.

Horovod puts HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT together to http://ADDR:PORT/SCOPE/KEY and never looks at them otherwise.
So ADDR is HOST:PORT/TOKEN here: every process has a word of its own in front of all its paths, by which it is known, and
which nobody else on this host knows. The variables are fixed for a process's life, and so is its agent.

Horovod's HTTP client in C++ tells upper from lower case in the names of headers; uvicorn sends them as they are given.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

import uvicorn

from ...errors import ElasticError
from ...rendezvous.host_port import host_port
from ...rendezvous.listening import listen
from ...rendezvous.quiet_server import QuietServer

_LOOPBACK = "127.0.0.1"  # Horovod's client knows IPv4 only
_LONGEST_BODY = 4 << 20  # bytes; a rank's addresses are 136 for each peer
_BODY_LIMIT = 10.0  # seconds
_MOST_CONNECTIONS = 2000

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Visitor(Protocol):
    """What the agent does for one process. ElasticError where a request makes no sense."""

    async def get(self, scope: str, key: str) -> bytes | None:
        """None if it is not there: the process asks again."""

    async def put(self, scope: str, key: str, value: bytes) -> None: ...

    async def delete(self, scope: str, key: str) -> None: ...


class Endpoint:
    """Serves from `start` to `close`."""

    def __init__(self) -> None:
        self._listener = listen(_LOOPBACK, 0)
        self.port: int = self._listener.getsockname()[1]
        self._visitors: dict[str, Visitor] = {}
        self._uvicorn = QuietServer(
            uvicorn.Config(
                self._answer,
                http="h11",
                ws="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        self._serving = asyncio.ensure_future(self._uvicorn.serve(sockets=[self._listener]))

    def admit(self, visitor: Visitor) -> str:
        """A token for one process."""
        token = secrets.token_hex(16)
        self._visitors[token] = visitor
        return token

    def forget(self, token: str) -> None:
        self._visitors.pop(token, None)

    def variables(self, token: str) -> dict[str, str]:
        """Where the process finds its place, in Horovod's variables."""
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{host_port(_LOOPBACK, self.port)}/{token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.port),
        }

    async def close(self) -> None:
        self._visitors.clear()
        await self._uvicorn.end(self._serving)
        self._listener.close()

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        status, body = 500, b""
        try:
            status, body = await self._outcome(scope, receive)
        except ElasticError as error:
            status, body = 400, str(error).encode()
        finally:
            length = str(len(body)).encode()
            with contextlib.suppress(OSError):
                await send({"type": "http.response.start", "status": status, "headers": [(b"Content-Length", length)]})
                await send({"type": "http.response.body", "body": body})

    async def _outcome(self, request: MutableMapping[str, Any], receive: Receive) -> tuple[int, bytes]:
        _, who, *rest = str(request["path"]).split("/")
        visitor = self._visitors.get(who.partition(":")[0])
        if visitor is None:
            return 403, b"no process of this agent's"
        if len(rest) != 2:
            return 400, b"a path is /SCOPE/KEY"
        scope, key = rest
        if request["method"] == "GET":
            value = await _unless_gone(visitor.get(scope, key), receive)
            return (404, b"") if value is None else (200, value)
        if request["method"] == "PUT":
            body = await _body(receive)
            if body is None:
                return 413, b""
            await visitor.put(scope, key, body)
            return 200, b""
        if request["method"] == "DELETE":
            await visitor.delete(scope, key)
            return 200, b""
        return 405, b""


async def _unless_gone(answer: Coroutine[Any, Any, bytes | None], receive: Receive) -> bytes | None:
    """None if who has asked is gone, too."""
    answering, going = asyncio.ensure_future(answer), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([answering, going], return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        answering.cancel()
        going.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes | None:
    """None if it is too long, or does not come."""
    body = bytearray()
    with contextlib.suppress(asyncio.TimeoutError):
        while True:
            message = await asyncio.wait_for(receive(), _BODY_LIMIT)
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > _LONGEST_BODY:
                return None
            if not message.get("more_body", False):
                return bytes(body)
    return None
