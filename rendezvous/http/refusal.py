"""Answers that are given before the application is asked."""

from __future__ import annotations

import json

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


async def refuse(scope: Scope, send: Send, status: int, detail: str, **headers: str) -> None:
    """As JSON, like every error; a WebSocket's handshake is answered in plain HTTP (its request must have been received)."""
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    body = json.dumps({"detail": detail}).encode()
    told = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    names = [(name.replace("_", "-").encode(), value.encode()) for name, value in told.items()]
    await send({"type": f"{kind}.start", "status": status, "headers": names})
    await send({"type": f"{kind}.body", "body": body})


class BodySize:
    """ASGI middleware: a body that says that it is too long is not even read, and one that grows too long no further."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._detail = f"the body is longer than {limit} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _content_length(scope) > self._limit:
            await refuse(scope, send, 413, self._detail)
        else:
            await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise HTTPException(413, self._detail)
            return message

        return counting


def _content_length(scope: Scope) -> int:
    told = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(told[0]) if told and told[0].isdigit() and len(told[0]) < 20 else 0
