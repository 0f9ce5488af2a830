"""Who may talk to the server: whoever shows the token. Asked before anything else, a WebSocket's handshake included."""

from __future__ import annotations

from collections.abc import Set

from starlette.types import ASGIApp, Receive, Scope, Send

from ..bearer import TokenFile
from .refusal import refuse

_MISSING = "this server wants a token: send it as `Authorization: Bearer TOKEN`"
_WRONG = "the token is not this server's"


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
        else:
            if scope["type"] == "websocket":
                await receive()  # the handshake
            await refuse(scope, send, 401, _MISSING if shown is None else _WRONG, www_authenticate="Bearer")


def _shown(scope: Scope) -> bytes | None:
    values: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
