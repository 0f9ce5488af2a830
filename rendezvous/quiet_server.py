"""uvicorn inside an event loop that is already there.

By itself it takes over the process's signal handlers and waits for open connections when it ends. This one leaves signals
alone, and its end takes well under a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

_WORDS = 0.3  # seconds for last words and closing handshakes


class QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def end(self, serving: asyncio.Task[None]) -> None:
        """Ends `serving`, the task of its `serve`, and all connections."""
        self.should_exit = True
        await asyncio.wait([serving], timeout=_WORDS)
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
        await asyncio.gather(serving, return_exceptions=True)
