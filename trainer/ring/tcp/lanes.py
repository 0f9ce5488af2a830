"""The connections to the two neighbours, and how bytes move over both of them, in both directions, at once.

A collective queues what it sends and receives on the lanes, in order; what comes in may cause more to be queued. One
thread moves all of it: a system call is made only when a socket is likely to take or to have bytes, and where nothing moves,
it waits for whichever socket is first, or for the end of the ring. The death of a neighbour is also seen on a connection that
has nothing to carry at that moment.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

from ....errors import RingError
from .heading import GOODBYE
from .lifeline import Lifeline

Then: TypeAlias = Callable[[], None]

_PIECES = 16  # buffers of one system call
_ENOUGH = 2 * 1024 * 1024  # bytes that are worth waking up for; the system makes room for them, or wakes up earlier


class Lane:
    """The connection to the neighbour with rank `peer`."""

    def __init__(self, connection: socket.socket, peer: int) -> None:
        self.connection = connection
        self.peer = peer
        self._outgoing: deque[memoryview] = deque()
        self._incoming: deque[tuple[memoryview, Then | None]] = deque()
        self.is_watched = True
        self._enough = 1

    def send(self, data: memoryview | bytes) -> None:
        """Queue bytes, which must not change until they have been sent."""
        if len(data):
            self._outgoing.append(memoryview(data))

    def receive(self, into: memoryview, then: Then | None = None) -> None:
        """Queue the place of the bytes that come next, at least one, and what is to be done when it is full."""
        self._incoming.append((into, then))

    @property
    def events(self) -> int:
        """What has to happen before anything can move."""
        return (select.POLLIN if self._incoming else 0) | (select.POLLOUT if self._outgoing else 0)

    def wake_when_full(self) -> None:
        """Have a wait for this lane end when what is received next is there as a whole, or much of it; not for each packet."""
        enough = min(len(self._incoming[0][0]), _ENOUGH) if self._incoming else 1
        if enough != self._enough:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
            self._enough = enough

    def look(self) -> None:
        """Raise `OSError` if the peer is gone, although nothing has to come from it at present.

        One that has left in order has said so; what it has sent for a later collective proves nothing either way.
        """
        try:
            if not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("it closed the connection")
        except BlockingIOError:
            pass
        self.is_watched = False

    def say_goodbye(self) -> None:
        """Only where nothing is queued."""
        try:
            self.connection.send(GOODBYE)
        except OSError:
            pass  # it is gone itself, or does not read

    def send_some(self) -> bool:
        """Whether any byte could be sent."""
        outgoing = self._outgoing
        try:
            if len(outgoing) == 1:
                sent = self.connection.send(outgoing[0])
            else:
                sent = self.connection.sendmsg(list(islice(outgoing, _PIECES)))
        except BlockingIOError:
            return False
        while sent:
            first = outgoing[0]
            if sent < len(first):
                outgoing[0] = first[sent:]
                break
            sent -= len(first)
            outgoing.popleft()
        return True

    def receive_some(self) -> bool:
        """Whether any byte was there."""
        into, then = self._incoming[0]
        try:
            count = self.connection.recv_into(into)
        except BlockingIOError:
            return False
        if count == len(into):
            self._incoming.popleft()
            if then is not None:
                then()
        elif count:
            self._incoming[0] = (into[count:], then)
        else:
            raise ConnectionResetError("it closed the connection")
        return True


class Lanes:
    """`limit` is how many seconds may pass without a byte."""

    def __init__(self, next_lane: Lane, previous_lane: Lane, lifeline: Lifeline, limit: float) -> None:
        self.next = next_lane
        self.previous = previous_lane
        self._lifeline = lifeline
        self._limit = limit

    def move(self) -> None:
        """Return when all that is queued, and is being queued meanwhile, has been sent and received.

        Raises `RingError`, after which the lanes are of no use, if a neighbour is gone, or the ring has ended.
        """
        lanes = (self.next, self.previous)
        for lane in lanes:
            lane.is_watched = True
        while True:
            moved = pending = False
            for lane in lanes:
                events = lane.events
                if not events:
                    continue
                pending = True
                try:
                    if events & select.POLLOUT and lane.send_some():
                        moved = True
                    if events & select.POLLIN and lane.receive_some():
                        moved = True
                except OSError as error:
                    raise self._loss(lane, error) from error
            self._lifeline.check()
            if not pending:
                return
            if not moved:
                self._wait(lanes)

    def _wait(self, lanes: tuple[Lane, Lane]) -> None:
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        for lane in lanes:
            lane.wake_when_full()
            events = lane.events or (select.POLLRDHUP if lane.is_watched else 0)
            if events:
                poll.register(lane.connection, events)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * self._limit)}
        for lane in lanes:
            if not lane.events and lane.connection.fileno() in ready:
                try:
                    lane.look()
                except OSError as error:
                    raise self._loss(lane, error) from error
        if not ready:
            awaited = " and ".join(sorted({f"rank {lane.peer}" for lane in lanes if lane.events}))
            raise RingError(f"waited {self._limit:g} s for a byte from or to {awaited}")

    def say_goodbye(self) -> None:
        """Tell the neighbours that this member leaves in order, between two collectives."""
        self.next.say_goodbye()
        self.previous.say_goodbye()

    def _loss(self, lane: Lane, error: OSError) -> RingError:
        if self._lifeline.reason is not None:
            return self._lifeline.error()
        return RingError(f"rank {lane.peer} is gone: {error}")
