"""Which of this process's sockets belong to the ring: learnt from the addresses that gloo publishes through the store.

Gloo cannot abort. Its connected sockets can be shut down from outside, which wakes most of its waits; they are found by
matching every descriptor's own and peer address against the listeners that gloo announced.
"""

from __future__ import annotations

import socket
import struct
import threading

from ...ring.connected import Address, normalised, shut_connected_to

_SOCKADDR_STORAGE = 128


def published_address(value: bytes) -> Address | None:
    """The listener in a value that gloo stores for a rank; None for other values.

    Two lengths lead: that of a host name, which follows it, and that of an address: `sockaddr_storage`, then a number.
    """
    if len(value) < 8:
        return None
    (name_length,) = struct.unpack_from("<Q", value, 0)
    start = 8 + name_length
    if name_length > 255 or len(value) < start + 8 + _SOCKADDR_STORAGE:
        return None
    (address_length,) = struct.unpack_from("<Q", value, start)
    if not _SOCKADDR_STORAGE <= address_length <= 2 * _SOCKADDR_STORAGE:
        return None
    raw = value[start + 8 : start + 8 + _SOCKADDR_STORAGE]
    family = int.from_bytes(raw[:2], "little")
    port = int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET:
        return normalised(socket.inet_ntop(socket.AF_INET, raw[4:8]), port)
    if family == socket.AF_INET6:
        return normalised(socket.inet_ntop(socket.AF_INET6, raw[8:24]), port)
    return None


class RingAddresses:
    """The listeners of one generation's groups; thread-safe."""

    def __init__(self) -> None:
        self._known: set[Address] = set()
        self._lock = threading.Lock()

    def learn(self, value: bytes) -> None:
        address = published_address(value)
        if address is not None:
            with self._lock:
                self._known.add(address)

    def shut(self) -> int:
        """Shut down every connected socket of this process that has one of the listeners at either end; returns how many."""
        with self._lock:
            known = set(self._known)
        return shut_connected_to(known)
