"""The two connections of a member: one to the next rank, and one from the rank before it.

Each member listens on the job's address at a port that the system picks, says at the meeting point where that is, and
connects to the next. All waits end with the lifeline, and at a limit, with an error that names the rank that was awaited.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from typing import Any, Protocol

from ....errors import RingError
from .greeting import Greeting, greet_next, greet_previous
from .lanes import Lane
from .lifeline import Lifeline

_STRANGERS = 16  # connections that have not proved anything yet, at once
_PATIENCE = 5.0  # seconds that one of them has for it


class Meeting(Protocol):
    """Where members find each other: a `MeetingClient`, or what is as good as one."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """Waits for the key."""
        ...


@dataclass(frozen=True)
class Place:
    """A member of one group. `address` is what it listens on and tells the others; `limit` (seconds) bounds forming."""

    rank: int
    size: int
    address: str
    secret: str
    group: str
    limit: float

    @property
    def next(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def previous(self) -> int:
        return (self.rank - 1) % self.size


@dataclass
class _Candidate:
    """A connection that is being greeted."""

    connection: socket.socket
    greeting: Greeting
    event: int
    until: float


def connect(place: Place, meeting: Meeting, lifeline: Lifeline) -> tuple[Lane, Lane]:
    """The lanes to the next and to the previous rank. Raises `RingError`."""
    deadline = time.monotonic() + place.limit
    listener = lifeline.adopt(_listen(place.address))
    try:
        host, port = listener.getsockname()[:2]
        meeting.set(f"{place.group}/{place.rank}", f"{host} {port}".encode())
        connection, address = _socket_for(*_where_next_listens(place, meeting))
        to_next = _Candidate(
            lifeline.adopt(connection),
            greet_next(connection, address, place.secret, place.group, place.rank, place.next),
            0,
            deadline,
        )
        return _Reception(place, listener, lifeline, to_next, deadline).both()
    finally:
        lifeline.drop(listener)


class _Reception:
    """Connects to the next rank and greets whoever comes, until the previous rank has come."""

    def __init__(
        self, place: Place, listener: socket.socket, lifeline: Lifeline, to_next: _Candidate, deadline: float
    ) -> None:
        self._place = place
        self._listener = listener
        self._lifeline = lifeline
        self._to_next = to_next
        self._deadline = deadline
        self._strangers: list[_Candidate] = []
        self._next: Lane | None = None
        self._previous: Lane | None = None

    def both(self) -> tuple[Lane, Lane]:
        self._go_on_with_next()
        while self._next is None or self._previous is None:
            ready = self._wait()
            self._lifeline.check()
            if self._next is None and self._to_next.connection.fileno() in ready:
                self._go_on_with_next()
            if self._previous is None:
                for candidate in list(self._strangers):
                    if candidate.connection.fileno() in ready and self._previous is None:
                        self._go_on_with(candidate)
                if self._previous is None and self._listener.fileno() in ready:
                    self._accept()
            self._drop_the_silent()
        for candidate in self._strangers:
            self._lifeline.drop(candidate.connection)
        return self._next, self._previous

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        if self._next is None:
            poll.register(self._to_next.connection, self._to_next.event)
        if self._previous is None:
            if len(self._strangers) < _STRANGERS:
                poll.register(self._listener, select.POLLIN)
            for candidate in self._strangers:
                poll.register(candidate.connection, candidate.event)
        now = time.monotonic()
        if now >= self._deadline:
            awaited = [f"rank {self._place.next} to answer"] if self._next is None else []
            awaited += [f"rank {self._place.previous} to connect"] if self._previous is None else []
            raise RingError(f"waited {self._place.limit:g} s for {' and for '.join(awaited)}")
        until = min([self._deadline, *(candidate.until for candidate in self._strangers)])
        return {descriptor for descriptor, _ in poll.poll(max(0.0, 1000 * (until - now)) + 1)}

    def _go_on_with_next(self) -> None:
        candidate, rank = self._to_next, self._place.next
        try:
            candidate.event = next(candidate.greeting)
        except StopIteration:
            self._next = Lane(candidate.connection, rank)
        except (OSError, ValueError) as error:
            self._lifeline.check()
            raise RingError(f"could not connect to rank {rank} of {self._place.group}: {error}") from error

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        _prepare(connection)
        place = self._place
        greeting = greet_previous(connection, place.secret, place.group, place.rank, place.previous)
        candidate = _Candidate(self._lifeline.adopt(connection), greeting, 0, time.monotonic() + _PATIENCE)
        self._strangers.append(candidate)
        self._go_on_with(candidate)

    def _go_on_with(self, candidate: _Candidate) -> None:
        try:
            candidate.event = next(candidate.greeting)
            return
        except StopIteration:
            self._previous = Lane(candidate.connection, self._place.previous)
        except (OSError, ValueError):
            self._lifeline.drop(candidate.connection)  # whoever it was: the one that is awaited may still come
        self._strangers.remove(candidate)

    def _drop_the_silent(self) -> None:
        now = time.monotonic()
        for candidate in [each for each in self._strangers if each.until <= now]:
            self._strangers.remove(candidate)
            self._lifeline.drop(candidate.connection)


def _where_next_listens(place: Place, meeting: Meeting) -> tuple[str, int]:
    try:
        said = meeting.get(f"{place.group}/{place.next}", place.limit)
    except RingError as error:
        raise RingError(f"rank {place.next} has not said where it listens: {error}") from error
    host, _, port = said.decode().rpartition(" ")
    return host, int(port)


def _listen(address: str) -> socket.socket:
    listener, found = _socket_for(address, 0)
    try:
        listener.bind(found)
        listener.listen(_STRANGERS)
    except OSError as error:
        listener.close()
        raise RingError(f"cannot listen on {address}, the address of this worker: {error}") from error
    return listener


def _socket_for(host: str, port: int) -> tuple[socket.socket, Any]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise RingError(f"{host} is no address: {error}") from error
    connection = socket.socket(family, kind, protocol)
    _prepare(connection)
    return connection, address


def _prepare(connection: socket.socket) -> None:
    """The sizes of the buffers are left to the system: where it grows them by itself, it goes higher than it lets others ask."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
