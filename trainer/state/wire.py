"""The connection of a copy: who may open one, and how bytes and messages go over it.

Both sides prove that they know the generation's secret without saying it: the receiver unpickles what the source sends,
and the source gives away the model. Every wait has a limit: so long without
a single byte is an error that names the peer.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import RingError

_MAGIC = b"elastic-copy-01\n"
_NONCE = 32
_PROOF = hashlib.sha256().digest_size
_HEADER = struct.Struct("<QQ16s")
_REQUEST = struct.Struct("<cQQ")
_PIECES = 512  # buffers per system call; Linux takes 1024 at most

LIMIT = 10.0  # seconds without a byte

META, PART, END = b"M", b"P", b"E"


class Offer(NamedTuple):
    """What a source says that it has: sizes in bytes, and the payload's layout in 16 bytes."""

    meta_nbytes: int
    nbytes: int
    layout: bytes


class Connection:
    """A connected socket. `close` may be called from any thread, and ends what another thread waits for in here."""

    def __init__(self, sock: socket.socket, peer: str, limit: float) -> None:
        self.peer = peer
        self._socket = sock
        self._limit = limit
        self._closing = threading.Lock()
        sock.settimeout(limit)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self, address: Any) -> None:
        with _Blame(self, "to connect"):
            self._socket.connect(address)

    def send(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Sends all of them. RingError if the peer is gone or takes nothing for the limit."""
        left = [memoryview(piece) for piece in pieces]
        with _Blame(self, "until it takes a byte"):
            while left:
                sent = self._socket.send(left[0]) if len(left) == 1 else self._socket.sendmsg(left[:_PIECES])
                _skip(left, sent)

    def receive_into(self, pieces: Sequence[memoryview]) -> None:
        """Fills all of them. RingError if the peer is gone or sends nothing for the limit."""
        left = [piece for piece in pieces if piece.nbytes]
        with _Blame(self, "for a byte"):
            while left:
                if len(left) == 1:
                    got = self._socket.recv_into(left[0])
                else:
                    got = self._socket.recvmsg_into(left[:_PIECES])[0]
                if not got:
                    raise ConnectionResetError("the connection was closed")
                _skip(left, got)

    def receive(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        self.receive_into([memoryview(data)])
        return data

    def request(self, what: bytes, start: int = 0, stop: int = 0) -> None:
        self.send([_REQUEST.pack(what, start, stop)])

    def next_request(self) -> tuple[bytes, int, int]:
        what, start, stop = _REQUEST.unpack(self.receive(_REQUEST.size))
        return what, start, stop

    def close(self) -> None:
        self.interrupt()
        with self._closing:
            self._socket.close()

    def interrupt(self) -> None:
        """Ends every wait on this connection, now and later; the thread that uses it closes it."""
        with self._closing:  # a descriptor that is closed meanwhile may be another socket's already
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # not connected, or closed already

    def blame(self, error: OSError, what: str) -> RingError:
        if isinstance(error, TimeoutError):
            return RingError(f"the state copy with {self.peer} stalled: waited {self._limit:g} s {what}")
        return RingError(f"the state copy with {self.peer} broke: {error}")


class _Blame:
    """Turns the errors of the socket into RingErrors that name the peer."""

    def __init__(self, connection: Connection, what: str) -> None:
        self._connection = connection
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise self._connection.blame(error, self._what) from error


def greet_receiver(connection: Connection, secret: str, offer: Offer) -> None:
    """The source's side. RingError if the peer does not know the secret."""
    mine = os.urandom(_NONCE)
    connection.send([_MAGIC + mine])
    answer = connection.receive(_PROOF + _NONCE)
    proof, theirs = bytes(answer[:_PROOF]), bytes(answer[_PROOF:])
    if not hmac.compare_digest(proof, _prove(secret, b"receiver", mine, theirs)):
        raise RingError(f"{connection.peer} asked for the state without knowing the generation's secret")
    connection.send([_prove(secret, b"source", mine, theirs) + _HEADER.pack(*offer)])


def greet_source(connection: Connection, secret: str) -> Offer:
    """The receiver's side. RingError if the peer is no source of this generation."""
    hello = connection.receive(len(_MAGIC) + _NONCE)
    if bytes(hello[: len(_MAGIC)]) != _MAGIC:
        raise RingError(f"{connection.peer} does not serve a state of this version")
    mine, theirs = os.urandom(_NONCE), bytes(hello[len(_MAGIC) :])
    connection.send([_prove(secret, b"receiver", theirs, mine) + mine])
    try:
        answer = connection.receive(_PROOF + _HEADER.size)
    except RingError as error:
        raise RingError(f"{error} (if it is alive, it serves another generation: it refused the secret)") from error
    if not hmac.compare_digest(bytes(answer[:_PROOF]), _prove(secret, b"source", theirs, mine)):
        raise RingError(f"{connection.peer} does not know the generation's secret")
    return Offer(*_HEADER.unpack(answer[_PROOF:]))


def _prove(secret: str, role: bytes, source_nonce: bytes, receiver_nonce: bytes) -> bytes:
    return hmac.digest(secret.encode(), role + source_nonce + receiver_nonce, "sha256")


def _skip(left: list[memoryview], count: int) -> None:
    """Takes the first `count` bytes off the list, in place."""
    done = 0
    while done < len(left) and left[done].nbytes <= count:
        count -= left[done].nbytes
        done += 1
    del left[:done]
    if count:
        left[0] = left[0][count:]
