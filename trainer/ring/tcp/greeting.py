"""How two neighbours know each other: both prove that they know the generation's secret, without saying it.

Written as generators that yield what their socket has to be ready for, so that one thread can greet several peers at once, and
a stranger who says nothing holds up nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
from collections.abc import Generator
from typing import Any

_MAGIC = b"elastic-ring-01\n"
_NONCE = 32
_PROOF = hashlib.sha256().digest_size
_HELLO = struct.Struct(f"<{len(_MAGIC)}sI{_NONCE}s")

Greeting = Generator[int, None, None]
"""Yields events of `select.poll`. Raises `OSError`, or `ValueError` for a peer that is not who it should be."""


def greet_next(connection: socket.socket, address: Any, secret: str, group: str, rank: int, peer: int) -> Greeting:
    """Connect to `address`, where rank `peer` listens."""
    try:
        connection.connect(address)
    except BlockingIOError:
        yield select.POLLOUT
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error)) from None
    mine = os.urandom(_NONCE)
    yield from _send(connection, _HELLO.pack(_MAGIC, rank, mine))
    answer = yield from _receive(connection, _NONCE + _PROOF)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _prove(secret, b"listens", group, rank, peer, mine, theirs)):
        raise ValueError("it does not know the generation's secret")
    yield from _send(connection, _prove(secret, b"connects", group, rank, peer, mine, theirs))


def greet_previous(connection: socket.socket, secret: str, group: str, rank: int, peer: int) -> Greeting:
    """Somebody has connected: it should be rank `peer`."""
    magic, claimed, theirs = _HELLO.unpack((yield from _receive(connection, _HELLO.size)))
    if magic != _MAGIC or claimed != peer:
        raise ValueError("it is another one")
    mine = os.urandom(_NONCE)
    yield from _send(connection, mine + _prove(secret, b"listens", group, peer, rank, theirs, mine))
    proof = yield from _receive(connection, _PROOF)
    if not hmac.compare_digest(proof, _prove(secret, b"connects", group, peer, rank, theirs, mine)):
        raise ValueError("it does not know the generation's secret")


def _prove(secret: str, role: bytes, group: str, rank: int, peer: int, nonce: bytes, listener_nonce: bytes) -> bytes:
    """From `rank` to `peer`, the one that listens."""
    name = f"{group}\n{rank}\n{peer}\n".encode()
    return hmac.digest(secret.encode(), b"\n".join([role, nonce + listener_nonce, name]), "sha256")


def _send(connection: socket.socket, data: bytes) -> Greeting:
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            yield select.POLLOUT


def _receive(connection: socket.socket, count: int) -> Generator[int, None, bytes]:
    data = b""
    while len(data) < count:
        try:
            more = connection.recv(count - len(data))
        except BlockingIOError:
            yield select.POLLIN
            continue
        if not more:
            raise ConnectionResetError("it closed the connection")
        data += more
    return data
