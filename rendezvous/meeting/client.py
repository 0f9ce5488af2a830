"""A member's side of the meeting point: blocking calls, each with a limit, all of which `abort` ends at once.

Every call that is in progress has a connection to itself, taken from a small pool, so that a thread that waits never
delays another one, and abort is to shut these sockets. A number is used as the address that it is; nothing is ever
looked up in reverse, since a name server that does not answer would cost seconds in the middle of a recovery.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import cast

import msgspec

from ...errors import RingError
from .messages import (
    MAX_FRAME,
    PREFIX,
    Add,
    AnyReply,
    Append,
    Check,
    CompareSet,
    CountKeys,
    Delete,
    Denied,
    Enter,
    Gather,
    Get,
    Request,
    Set,
    Value,
    Wait,
    decode_reply,
    frame,
)

_SLACK = 2.0  # seconds by which a server may be late with "timed out" before it counts as one that does not answer
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # seconds between two attempts to connect
_RECEIVE = 65536  # bytes


class MeetingTimeout(RingError):
    """What was awaited at the meeting point did not come in time."""


class GatherTimeout(MeetingTimeout):
    """`missing` are the ranks that had not given their value in time."""

    def __init__(self, message: str, missing: list[int]) -> None:
        super().__init__(message)
        self.missing = missing


class MeetingClient:
    """Calls to one generation's meeting point. It may be used by any number of threads at once.

    Nothing is connected before the first call, so that an abort always finds an object to abort. Every call raises
    `MeetingTimeout` at its limit, and `RingError` if the meeting point is gone, refuses, or was aborted.
    `timeout` (seconds) bounds connecting, which is tried again until then, and each call that names no limit itself.
    """

    def __init__(self, address: str, job: str, generation: int, secret: str, timeout: float = 30.0) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._enter = Enter(job, generation, secret)
        self._timeout = timeout
        self._name = f"the meeting point {address} of generation {generation}"
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._in_use: set[socket.socket] = set()
        self._ended = threading.Event()
        self._reason = ""

    @property
    def secret(self) -> str:
        """What the members of this generation know each other by."""
        return self._enter.secret

    def set(self, key: str, value: bytes) -> None:
        self._call(Set(key, value))

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """Waits for the key and returns its value."""
        return self.multi_get([key], timeout)[0]

    def multi_get(self, keys: Sequence[str], timeout: float | None = None) -> list[bytes]:
        """Waits for all keys and returns their values in the same order."""
        limit = self._timeout if timeout is None else timeout
        return cast("list[bytes]", self._call(Get([*keys], limit), limit))

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        """Waits until all keys are there."""
        limit = self._timeout if timeout is None else timeout
        self._call(Wait([*keys], limit), limit)

    def add(self, key: str, amount: int) -> int:
        """Adds to a key that holds a decimal number (an absent one holds 0) and returns the sum."""
        return cast(int, self._call(Add(key, amount)))

    def append(self, key: str, value: bytes) -> None:
        self._call(Append(key, value))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets the key if it holds `expected` (or is absent and `expected` is empty); returns what it holds then.

        As in `torch.distributed.Store`, the answer for an absent key and a non-empty `expected` is `expected`.
        """
        return cast(bytes, self._call(CompareSet(key, expected, desired)))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there; does not wait."""
        return cast(bool, self._call(Check([*keys])))

    def delete(self, key: str) -> bool:
        """Whether the key was there."""
        return cast(bool, self._call(Delete(key)))

    def num_keys(self) -> int:
        return cast(int, self._call(CountKeys()))

    def gather(self, name: str, rank: int, world_size: int, value: bytes, timeout: float | None = None) -> list[bytes]:
        """All ranks' values in rank order, in one round trip after the last rank has given its own.

        `GatherTimeout` names the ranks that are missing; what this rank gave stays given, and it may ask again.
        """
        limit = self._timeout if timeout is None else timeout
        return cast("list[bytes]", self._call(Gather(name, rank, world_size, value, limit), limit))

    def abort(self, reason: str) -> None:
        """Ends every call in progress, and every later one, at once with `RingError(reason)`. From any thread."""
        with self._lock:
            if self._ended.is_set():
                return
            self._reason = reason
            self._ended.set()
            for connection in self._in_use:
                _shut(connection)
            idle, self._idle = self._idle, []
            for connection in idle:
                _shut(connection)
                connection.close()

    def close(self) -> None:
        """Gives the connections back; calls in progress and later ones end with `RingError`."""
        self.abort("this member has left it")

    def _call(self, request: Request, waits: float = 0.0) -> object:
        outgoing = _framed(request)
        connection = self._take_connection()
        limit = time.monotonic() + (waits or self._timeout) + _SLACK
        try:
            reply = _ask(connection, outgoing, limit)
        except (OSError, msgspec.MsgspecError) as error:
            self._drop(connection)
            self._raise_if_ended(error)
            if isinstance(error, TimeoutError):
                raise MeetingTimeout(f"{self._name} has not answered {_words(request)} in time") from error
            raise RingError(f"{self._name} is gone: {error}") from error
        except BaseException:
            self._drop(connection)
            raise
        if isinstance(reply, Denied):
            self._drop(connection)  # the server closes it if it could not read the request
            raise RingError(f"{self._name} refuses {_words(request)}: {reply.reason}")
        self._give_back(connection)
        if isinstance(reply, Value):
            return reply.value
        message = f"{self._name}: waited {waits:.1f} s for {_words(request)}, missing {_some(reply.missing)}"
        if isinstance(request, Gather):
            raise GatherTimeout(message, cast("list[int]", reply.missing))
        raise MeetingTimeout(message)

    def _take_connection(self) -> socket.socket:
        with self._lock:
            self._raise_if_ended(None)
            if self._idle:
                connection = self._idle.pop()
                self._in_use.add(connection)
                return connection
        return self._connect()

    def _connect(self) -> socket.socket:
        limit = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._connect_once(limit)
            except (OSError, msgspec.MsgspecError) as error:
                self._raise_if_ended(error)
                if time.monotonic() + pause >= limit:
                    raise MeetingTimeout(f"could not reach {self._name} in {self._timeout:.1f} s: {error}") from error
            if self._ended.wait(pause):
                self._raise_if_ended(None)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _connect_once(self, limit: float) -> socket.socket:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        connection = socket.socket(family, kind, protocol)
        try:
            with self._lock:
                self._raise_if_ended(None)
                self._in_use.add(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_left(limit))
            connection.connect(address)
            reply = _ask(connection, frame(self._enter), limit)
        except BaseException:
            self._drop(connection)
            raise
        if isinstance(reply, Denied):
            self._drop(connection)
            raise RingError(f"{self._name} refuses this member: {reply.reason}")
        return connection

    def _give_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._in_use.discard(connection)
            if not self._ended.is_set():
                self._idle.append(connection)
                return
            connection.close()

    def _drop(self, connection: socket.socket) -> None:
        """Closes under the lock, so that an abort never shuts a descriptor that has become somebody else's."""
        with self._lock:
            self._in_use.discard(connection)
            _shut(connection)
            connection.close()

    def _raise_if_ended(self, cause: BaseException | None) -> None:
        if self._ended.is_set():
            raise RingError(f"{self._name}: {self._reason}") from cause


def _ask(connection: socket.socket, outgoing: bytes, limit: float) -> AnyReply:
    connection.settimeout(_left(limit))
    connection.sendall(outgoing)
    connection.settimeout(_left(limit))
    received = connection.recv(_RECEIVE)
    while received and len(received) < PREFIX:
        more = connection.recv(_RECEIVE)
        received = received + more if more else b""
    if not received:
        raise ConnectionResetError("it closed the connection")
    length = int.from_bytes(received[:PREFIX], "big")
    if length > MAX_FRAME:
        raise ConnectionError(f"it sent a message of {length} bytes")
    if len(received) == PREFIX + length:
        return decode_reply(memoryview(received)[PREFIX:])
    body = bytearray(length)
    filled = len(received) - PREFIX
    body[:filled] = received[PREFIX:]
    view = memoryview(body)
    while filled < length:
        connection.settimeout(_left(limit))
        count = connection.recv_into(view[filled:])
        if not count:
            raise ConnectionResetError("it closed the connection")
        filled += count
    return decode_reply(body)


def _left(limit: float) -> float:
    left = limit - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _framed(request: Request) -> bytes:
    try:
        return frame(request)
    except ValueError as error:
        raise RingError(str(error)) from None


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _words(request: Request) -> str:
    """The request in words for an error message; never its value."""
    if isinstance(request, Gather):
        return f"gather {request.name!r}"
    if isinstance(request, (Get, Wait, Check)):
        return f"{type(request).__name__.lower()} of {_some(request.keys)}"
    key = getattr(request, "key", None)
    return type(request).__name__.lower() + (f" of {key!r}" if key is not None else "")


def _some(items: Sequence[str] | Sequence[str | int]) -> str:
    shown = ", ".join(str(item) for item in items[:8])
    return shown + (f" and {len(items) - 8} more" if len(items) > 8 else "")
