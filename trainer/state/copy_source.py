"""The source's side of a copy: answers the receivers' requests for parts of its payload, each in a thread."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import Protocol

from ...errors import RingError
from ...rendezvous.host_port import host_port
from .payload import Cursor, Payload
from .wire import END, LIMIT, META, PART, Connection, Offer, greet_receiver

ARRIVAL_LIMIT = 60.0  # seconds; a receiver that is gone is noticed by its agent long before


class Image(Protocol):
    """What a source serves; `layout`, of 16 bytes, is equal for payloads whose bytes mean the same."""

    @property
    def meta(self) -> bytes: ...

    @property
    def layout(self) -> bytes: ...

    def payload(self) -> Payload: ...


class CopySource:
    """Listens from the start, so that its address can be told; answers once `serve` is called. One a generation."""

    def __init__(self, host: str, secret: str, limit: float = LIMIT, arrival_limit: float = ARRIVAL_LIMIT) -> None:
        """Binds a free port of `host`. OSError if that is not an address of this machine.

        `limit` is for a connected receiver without a byte, `arrival_limit` until the next one has come; in seconds.
        """
        self._secret = secret
        self._limit = limit
        self._arrival_limit = arrival_limit
        self._lock = threading.Lock()
        self._aborted: str | None = None
        self._connections: set[Connection] = set()
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        self._listener = socket.socket(family, kind, protocol)
        try:
            self._listener.bind(address)
            self._listener.listen(128)
            self._listener.setblocking(False)
            self._wakes, self._waker = socket.socketpair()
        except OSError:
            self._listener.close()
            raise
        port = self._listener.getsockname()[1]
        self.address = host_port(host, port)

    def serve(self, image: Image, receivers: int) -> None:
        """Serves until so many receivers have all that they want of this source.

        RingError if one of them breaks off, stalls or does not come, or on `abort`. The image's memory must not change
        meanwhile.
        """
        payload = image.payload()
        offer = Offer(len(image.meta), payload.nbytes, image.layout)
        session = _Session(receivers)
        threads: list[threading.Thread] = []
        try:
            while not session.over():
                self._raise_if_aborted()
                waited = session.wait_left(self._arrival_limit)
                if waited is not None and waited <= 0:
                    raise RingError(
                        f"waited {self._arrival_limit:g} s for receivers of the state: {session.greeted} of {receivers} came"
                    )
                ready, _, _ = select.select([self._listener, self._wakes], [], [], waited)
                if self._wakes in ready:
                    self._wakes.recv(64)
                if self._listener in ready and (connection := self._accept()) is not None:
                    arguments = (connection, image, payload.cursor(), offer, session)
                    threads.append(threading.Thread(target=self._answer, args=arguments, name="elastic-copy-source"))
                    threads[-1].start()
            self._raise_if_aborted()
            if session.error is not None:
                raise session.error
        finally:
            for connection in self._snapshot():
                connection.interrupt()
            for thread in threads:
                thread.join()

    def abort(self, reason: str = "the generation was ended") -> None:
        """From any thread: ends `serve` at once with a RingError, and every later one."""
        with self._lock:
            self._aborted = self._aborted or reason
        for connection in self._snapshot():
            connection.interrupt()
        self._wake()

    def close(self) -> None:
        """After `serve` has returned, or if it was never called."""
        self.abort("the source is closed")
        self._listener.close()
        self._wakes.close()
        self._waker.close()

    def _accept(self) -> Connection | None:
        try:
            sock, address = self._listener.accept()
        except OSError:  # it went away between the two calls
            return None
        connection = Connection(sock, f"receiver {address[0]}:{address[1]}", self._limit)
        with self._lock:
            self._connections.add(connection)
        return connection

    def _answer(self, connection: Connection, image: Image, cursor: Cursor, offer: Offer, session: _Session) -> None:
        """A receiver's thread. Whoever does not know the secret is sent away and counts for nothing."""
        try:
            greet_receiver(connection, self._secret, offer)
        except RingError:
            pass
        else:
            session.greet()
            try:
                _answer_requests(connection, image.meta, cursor, offer)
                session.finish(None)
            except RingError as error:
                session.finish(error)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()
            self._wake()

    def _snapshot(self) -> list[Connection]:
        with self._lock:
            return list(self._connections)

    def _wake(self) -> None:
        try:
            self._waker.send(b"w", socket.MSG_DONTWAIT)
        except OSError:
            pass  # full of wakes, or closed

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise RingError(f"the state copy was aborted: {self._aborted}")


class _Session:
    """What the threads of one `serve` tell the one that waits for them."""

    def __init__(self, receivers: int) -> None:
        self.greeted = 0
        self.error: RingError | None = None
        self._receivers = receivers
        self._finished = 0
        self._lock = threading.Lock()
        self._since = time.monotonic()

    def greet(self) -> None:
        with self._lock:
            self.greeted += 1
            self._since = time.monotonic()

    def finish(self, error: RingError | None) -> None:
        with self._lock:
            self._finished += 1
            self.error = self.error or error

    def over(self) -> bool:
        with self._lock:
            return self.error is not None or self._finished >= self._receivers

    def wait_left(self, limit: float) -> float | None:
        """Seconds until somebody else must have come; None if all have: their connections have limits of their own."""
        with self._lock:
            return None if self.greeted >= self._receivers else self._since + limit - time.monotonic()


def _answer_requests(connection: Connection, meta: bytes, cursor: Cursor, offer: Offer) -> None:
    while True:
        what, start, stop = connection.next_request()
        if what == END:
            return
        if what == META:
            connection.send([meta])
        elif what == PART and start < stop <= offer.nbytes:
            connection.send(cursor.load(start, stop))
        else:
            raise RingError(f"{connection.peer} asked for bytes {start} to {stop} of {offer.nbytes}")
