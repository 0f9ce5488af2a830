"""The end of a ring, from any thread at any moment, and what the ring holds of the operating system until then.

Every wait of the ring also waits for this, so that an abort depends on nothing that a peer or a socket does.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable

from ....errors import RingError


class Lifeline:
    """The sockets of one ring. `fileno` becomes readable when it ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()  # a signal handler may abort what it has interrupted
        self._sockets: set[socket.socket] = set()
        self._calls: list[Callable[[str], None]] = []
        self._reason: str | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        _open.add(self)

    @property
    def reason(self) -> str | None:
        """Why the ring has ended; None while it lives."""
        return self._reason

    def fileno(self) -> int:
        return self._wake

    def check(self) -> None:
        """Raise `RingError` if the ring has ended."""
        if self._reason is not None:
            raise self.error()

    def error(self) -> RingError:
        return RingError(f"{self.name}: {self._reason}")

    def adopt(self, connection: socket.socket) -> socket.socket:
        """Make the socket one of this ring's, non-blocking; if the ring has ended it is closed, and `RingError` raised."""
        connection.setblocking(False)
        with self._lock:
            if self._reason is None:
                self._sockets.add(connection)
                return connection
        connection.close()
        raise self.error()

    def drop(self, connection: socket.socket) -> None:
        """Close a socket that the ring does not need."""
        with self._lock:
            self._sockets.discard(connection)
            connection.close()

    def on_end(self, call: Callable[[str], None]) -> None:
        """Have `call` made with the reason when the ring ends; at once if it has ended already."""
        with self._lock:
            if self._reason is None:
                self._calls.append(call)
                return
        call(self._reason)

    def end(self, reason: str, last_words: Callable[[], None] | None = None) -> None:
        """End the ring; the first reason counts. The sockets are shut, after `last_words`, and closed by `release`."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            calls, self._calls = self._calls, []
            os.eventfd_write(self._wake, 1)
            if last_words is not None:
                last_words()
            for connection in self._sockets:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # not connected, or the peer is gone already
        for call in calls:
            call(reason)

    def release(self) -> None:
        """Give everything back. Only once the ring has ended, and when nobody waits on it any more."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        sockets, self._sockets = self._sockets, set()
        for connection in sockets:
            connection.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
        _open.discard(self)


_open: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _forget_all() -> None:
    # A forked child, such as a data loader's, would keep the connections open beyond this process's death, of which the
    # peers would not hear then.
    for lifeline in list(_open):
        lifeline._close()


os.register_at_fork(after_in_child=_forget_all)
