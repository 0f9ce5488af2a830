"""Who may talk to the server: whoever shows the token. Asked before anything else, a WebSocket's handshake included."""

from __future__ import annotations

import json
from collections.abc import Set

from starlette.types import ASGIApp, Receive, Scope, Send

from ..bearer import TokenFile

_DETAIL = {"detail": "this server wants a token: send it as `Authorization: Bearer TOKEN`"}
_WRONG = {"detail": "the token is not this server's"}


class Authorization:
    """ASGI middleware. Without `tokens` everybody is let through; `open_paths` are open to everybody in any case."""

    def __init__(self, app: ASGIApp, tokens: TokenFile | None, open_paths: Set[str]) -> None:
        self._app = app
        self._tokens = tokens
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] in ("http", "websocket") and scope["path"] not in self._open_paths
        if not guarded or self._tokens is None:
            await self._app(scope, receive, send)
            return
        shown = _shown(scope)
        if shown is not None and self._tokens.accepts(shown):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse("http.response", _DETAIL if shown is None else _WRONG, send)
        else:
            await receive()  # the handshake
            await _refuse("websocket.http.response", _DETAIL if shown is None else _WRONG, send)


def _shown(scope: Scope) -> bytes | None:
    values: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


async def _refuse(kind: str, problem: dict[str, str], send: Send) -> None:
    body = json.dumps(problem).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": f"{kind}.start", "status": 401, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
