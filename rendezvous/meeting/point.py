"""The meeting point of a generation: a small key-value store in the agent of rank 0, where a ring's members meet.

It is ours, and not torch's TCPStore, because a member must be able to stop waiting at once when the generation is
superseded, and because nothing here may depend on a name server. It runs on a thread and an event loop of its own:
whatever else the agent does, forming does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import threading
from collections.abc import Callable

import msgspec

from ..host_port import host_port
from .keys import GenerationKeys, Pending
from .messages import (
    MAX_FIRST_FRAME,
    MAX_FRAME,
    PREFIX,
    AnyRequest,
    Denied,
    Enter,
    Gather,
    Get,
    Reply,
    Value,
    Wait,
    decode_request,
    frame,
)

HOLD = 10.0  # seconds that a member may be ahead of its meeting point's agent, and that a peer has to say who it is


class MeetingServer:
    """Serves the meeting points of an agent on one port of `host`.

    Its methods may be called from any thread; after `close` they do nothing.
    """

    def __init__(self, host: str) -> None:
        """Binds and starts to listen. OSError if `host` is not an address of this machine."""
        self._socket = _listen(host)
        address, port = self._socket.getsockname()[:2]
        self.address = host_port(address, port)
        self._generations: dict[tuple[str, int], _Generation] = {}
        self._newest: dict[str, int] = {}
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="meeting-point", daemon=True)
        self._thread.start()

    def open(self, job: str, generation: int, secret: str) -> None:
        """Members of `generation` that know `secret` may meet here, including those that have come too early."""
        self._soon(lambda: self._open(job, generation, secret))

    def forget(self, before: int) -> None:
        """Drops every generation below `before`, with its keys and connections."""
        self._soon(lambda: self._forget(before))

    def close(self) -> None:
        """Ends the thread, the port and all connections."""
        self._soon(self._closing.set)
        self._thread.join(5)

    def _soon(self, action: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._socket.close()
            self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: _Connection(self), sock=self._socket, backlog=1024)
        await self._closing.wait()
        server.close()
        for connection in [*self._connections]:
            connection.abort()
        await asyncio.sleep(0)  # lets the aborted connections close their descriptors before the loop goes

    def _open(self, job: str, generation: int, secret: str) -> None:
        opened = self._generations.get((job, generation))
        if opened is None or opened.secret != secret:
            self._generations[job, generation] = _Generation(secret)
        self._newest[job] = max(generation, self._newest.get(job, 0))
        for connection in [*self._connections]:
            connection.enter_if_opened()

    def _forget(self, before: int) -> None:
        for job, generation in [*self._generations]:
            if generation < before:
                del self._generations[job, generation]
                self._newest[job] = max(before - 1, self._newest[job])
        for connection in [*self._connections]:
            if 0 < connection.generation < before:  # 0: it has not said yet where it wants to go
                connection.abort()

    def admit(self, request: Enter) -> _Generation | Denied | None:
        """The generation to which the request belongs, or why not; None while it is not open yet."""
        opened = self._generations.get((request.job, request.generation))
        if opened is None:
            newest = self._newest.get(request.job, 0)
            if request.generation > newest:
                return None
            return Denied(f"generation {request.generation} is over, {newest} is the newest here")
        if not hmac.compare_digest(opened.secret.encode(), request.secret.encode()):
            return Denied(f"wrong secret for generation {request.generation} of job {request.job!r}")
        return opened

    def connected(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def disconnected(self, connection: _Connection) -> None:
        self._connections.discard(connection)


class _Generation:
    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.keys = GenerationKeys()


class _Connection(asyncio.Protocol):
    """One member's connection: first `Enter`, then one request at a time."""

    def __init__(self, server: MeetingServer) -> None:
        self.generation = 0
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._early: Enter | None = None
        self._keys: GenerationKeys | None = None
        self._answered = True
        self._pending: Pending | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connected(self)
        self._timer = asyncio.get_running_loop().call_later(HOLD, self._entering_took_too_long)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.disconnected(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._pending is not None:
            self._pending.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < PREFIX:
            return
        length = int.from_bytes(self._buffer[:PREFIX], "big")
        if length > (MAX_FRAME if self._keys is not None else MAX_FIRST_FRAME):
            self._deny(f"a message of {length} bytes is too long")
        elif not self._answered or self._early is not None or len(self._buffer) > PREFIX + length:
            self._deny("a request while another one waits on the same connection")
        elif len(self._buffer) == PREFIX + length:
            body = bytes(memoryview(self._buffer)[PREFIX:])
            self._buffer = bytearray()
            self._take(body)

    def _take(self, body: bytes) -> None:
        try:
            request: AnyRequest = decode_request(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._deny(f"not a request: {error}")
            return
        if isinstance(request, Enter):
            self._enter(request)
        elif self._keys is None:
            self._deny("the first request must be Enter")
        else:
            self._ask(self._keys, request)

    def _enter(self, request: Enter) -> None:
        if self._keys is not None:
            self._deny("Enter comes once")
            return
        self.generation = request.generation
        self._early = request
        self.enter_if_opened()

    def enter_if_opened(self) -> None:
        if self._early is None:
            return
        admitted = self._server.admit(self._early)
        if isinstance(admitted, Denied):
            self._deny(admitted.reason)
        elif admitted is not None:
            self._early = None
            self._keys = admitted.keys
            self._answer(Value())

    def _entering_took_too_long(self) -> None:
        self._timer = None
        self._deny(
            f"generation {self.generation} was not opened here within {HOLD:.0f} s" if self._early else "no Enter"
        )

    def _ask(self, keys: GenerationKeys, request: AnyRequest) -> None:
        assert not isinstance(request, Enter)
        self._answered = False
        self._pending = keys.ask(request, self._answer)
        if self._pending is not None and isinstance(request, (Get, Wait, Gather)):
            self._timer = asyncio.get_running_loop().call_later(request.timeout, self._pending.expire)

    def _answer(self, reply: Reply) -> None:
        self._answered = True
        self._pending = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.write(_framed(reply))

    def _deny(self, reason: str) -> None:
        """Says why, and ends the connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(Denied(reason)))
            self._transport.close()


def _framed(reply: Reply) -> bytes:
    try:
        return frame(reply)
    except ValueError as error:
        return frame(Denied(str(error)))


def _listen(host: str) -> socket.socket:
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.bind(address)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener
