"""The receiver's side of a copy: asks all sources for parts at once, each for the next as soon as it has answered."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence

from ...errors import RingError
from .payload import Cursor, Payload
from .wire import END, LIMIT, META, PART, Connection, Offer, greet_source

CHUNK = 4 << 20  # bytes; what a copy holds beside the state where it cannot work in place
AHEAD = 2  # parts that a receiver has asked one source for, so that the source never waits for a request


class CopyReceiver:
    """Takes a state from `sources` (HOST:PORT, the lead first): `meta`, then `fetch` once, then `close`."""

    def __init__(self, sources: Sequence[str], secret: str, limit: float = LIMIT, chunk: int = CHUNK) -> None:
        self._sources = list(sources)
        self._secret = secret
        self._limit = limit
        self._chunk = chunk
        self._lock = threading.Lock()
        self._aborted: str | None = None
        self._connections: list[Connection] = []
        self._offers: list[Offer] = []

    def meta(self) -> bytes:
        """Connects to all sources and gives the lead's meta bytes. RingError if one of them does not answer."""
        try:
            for source in self._sources:
                self._offers.append(greet_source(self._connect(source), self._secret))
            lead = self._connections[0]
            lead.request(META)
            return bytes(lead.receive(self._offers[0].meta_nbytes))
        except RingError:
            self._raise_if_aborted()  # which is then what really happened
            raise

    def fetch(self, payload: Payload) -> None:
        """Fills `payload`, which must have the lead's size, from all sources whose layout is the lead's.

        RingError if one of them fails; the payload's memory is then neither the old nor the new content.
        """
        if payload.nbytes != self._offers[0].nbytes:
            raise ValueError(f"the lead has {self._offers[0].nbytes} bytes, there is room for {payload.nbytes}")
        parts = _Parts(payload.nbytes, self._chunk)
        useful = [
            c for c, offer in zip(self._connections, self._offers, strict=True) if offer[1:] == self._offers[0][1:]
        ]
        errors: list[BaseException] = []

        def take(connection: Connection) -> None:
            try:
                _take_parts(connection, payload.cursor(), parts)
            except BaseException as error:
                errors.append(error)
                self._interrupt()  # the others have nothing to wait for any more

        threads = [
            threading.Thread(target=take, args=(connection,), name="elastic-copy-receiver") for connection in useful[1:]
        ]
        try:
            for thread in threads:
                thread.start()
            take(useful[0])
        finally:
            for thread in threads:
                thread.join()
        self._raise_if_aborted()
        if errors:
            raise errors[0]
        for connection in self._connections:
            try:
                connection.request(END)
            except RingError:
                pass  # everything is here already

    def abort(self, reason: str = "the generation was ended") -> None:
        """From any thread: ends `meta` and `fetch` at once with a RingError, and every later one."""
        with self._lock:
            self._aborted = self._aborted or reason
        self._interrupt()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _connect(self, source: str) -> Connection:
        host, _, port = source.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[0]
            connection = Connection(socket.socket(family, kind, protocol), f"source {source}", self._limit)
        except OSError as error:
            raise RingError(f"the state cannot be copied from {source}: {error}") from error
        with self._lock:
            self._connections.append(connection)
        self._raise_if_aborted()
        connection.connect(address)
        return connection

    def _interrupt(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.interrupt()

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise RingError(f"the state copy was aborted: {self._aborted}")


class _Parts:
    """Deals out the payload part by part to the threads that ask."""

    def __init__(self, nbytes: int, chunk: int) -> None:
        self._nbytes = nbytes
        self._chunk = chunk
        self._next = 0
        self._lock = threading.Lock()

    def take(self) -> tuple[int, int] | None:
        with self._lock:
            start = self._next
            if start >= self._nbytes:
                return None
            self._next = min(start + self._chunk, self._nbytes)
            return start, self._next


def _take_parts(connection: Connection, cursor: Cursor, parts: _Parts) -> None:
    asked: deque[tuple[int, int]] = deque()
    while True:
        while len(asked) < AHEAD and (part := parts.take()) is not None:
            connection.request(PART, *part)
            asked.append(part)
        if not asked:
            return
        start, stop = asked.popleft()
        connection.receive_into(cursor.room(start, stop))
        cursor.store(start, stop)
