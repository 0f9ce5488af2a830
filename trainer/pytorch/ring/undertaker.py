"""Threads that wait for what cannot be interrupted, so that nobody else has to.

Dropping the last reference to a gloo group with an operation in flight blocks for the rest of that operation's timeout; a
constructor that connects to a dead peer blocks as long. Both happen on threads of this module, which end by themselves.
"""

from __future__ import annotations

import threading
import time
from typing import Any

_buried: set[threading.Thread] = set()
_lock = threading.Lock()


def start(name: str, target: Any, *arguments: Any) -> threading.Thread:
    """Run `target` on a daemon thread that counts as stuck until it ends."""

    def body() -> None:
        try:
            target(*arguments)
        finally:
            with _lock:
                _buried.discard(threading.current_thread())

    thread = threading.Thread(target=body, name=name, daemon=True)
    with _lock:
        _buried.add(thread)
    thread.start()
    return thread


def bury(holder: list[Any], name: str) -> None:
    """Drop the references in `holder` (emptied) on a thread, however long that takes."""
    contents = list(holder)
    holder.clear()
    start(f"undertaker-{name}", contents.clear)


def wait_until_done(limit: float) -> None:
    """Give the threads `limit` seconds to end."""
    deadline = time.monotonic() + limit
    for thread in list(_buried):
        thread.join(max(0.0, deadline - time.monotonic()))


def stuck() -> int:
    """How many threads have not ended yet."""
    with _lock:
        return len(_buried)
