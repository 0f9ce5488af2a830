"""What a server that does not lead answers: where the leader is, or that nothing is decided at present.

It is said before a WebSocket is accepted, in plain HTTP, so that any client understands it: 307 with the leader's
address, or 503 with the state, from which an agent knows that it is not its own line to the server that is cut.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .leadership import Leadership
from .replicas import STATE

_OPEN = {"/healthz", "/readyz", "/metrics", "/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"}


class LeaderOnly:
    """ASGI middleware: lets everything pass while `leads`, and what every replica answers for itself always."""

    def __init__(self, app: ASGIApp, leadership: Leadership, leads: Callable[[], bool]) -> None:
        self._app = app
        self._leadership = leadership
        self._leads = leads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = scope["type"] in ("http", "websocket") and scope["path"] not in _OPEN
        if not answers or self._leads():
            await self._app(scope, receive, send)
            return
        await self._elsewhere(scope)(scope, receive, send)

    def _elsewhere(self, scope: Scope) -> JSONResponse:
        state = self._leadership.state
        if state == "following":
            path = scope.get("raw_path", b"").decode("ascii") or scope["path"]
            query = f"?{scope['query_string'].decode('ascii')}" if scope.get("query_string") else ""
            location = f"{self._leadership.leader_url}{path}{query}"
            content = {"detail": f"another server leads: {self._leadership.leader_url}"}
            return JSONResponse(content, 307, {"location": location, STATE: state})
        reason = "the store does not answer" if state == "frozen" else "no server leads yet"
        content = {"detail": f"decisions are frozen, {reason}: try again"}
        return JSONResponse(content, 503, {"retry-after": "1", STATE: state})
