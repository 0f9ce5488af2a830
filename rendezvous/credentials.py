"""What an agent shows to be let in by a server, and for how long it tries if it is not."""

from __future__ import annotations

import ssl as tls
import time
from collections.abc import Callable
from typing import Any

from ..errors import AuthorizationError

_AT_THE_DOOR = 5.0  # seconds for which an agent that was never let in tries on: its token may be on its way
_IN_THE_JOB = 300.0  # seconds, once it was: then a new token may reach the two ends at different times
_DENIALS = (401, 403)


class Credentials:
    """`token` is asked for at each connection; `ssl` is for https, None trusts what the system trusts."""

    def __init__(self, token: Callable[[], str] | None = None, ssl: tls.SSLContext | None = None) -> None:
        self._token = token
        self._ssl = ssl
        self._denied_since: float | None = None
        self._was_let_in = False

    def options(self, url: str) -> dict[str, Any]:
        """For a WebSocket's `connect`."""
        secure = url.startswith("wss:")
        return {
            "ssl": (self._ssl or tls.create_default_context()) if secure else None,
            "additional_headers": {} if self._token is None else {"Authorization": f"Bearer {self._token()}"},
        }

    def let_in(self) -> None:
        self._was_let_in, self._denied_since = True, None

    def answered(self, status: int, server: str) -> None:
        """AuthorizationError when `server` has denied this agent for long enough."""
        if status not in _DENIALS:
            return
        now = time.monotonic()
        self._denied_since = self._denied_since or now
        limit = _IN_THE_JOB if self._was_let_in else _AT_THE_DOOR
        if now - self._denied_since >= limit:
            what = "wants a token" if self._token is None else "does not take this agent's token"
            raise AuthorizationError(
                f"the rendezvous server at {server} {what} (HTTP {status}, for {limit:g} s): give the file with the server's"
                " token (--token-file)"
            )
