"""Shutting down this process's connected sockets of a ring, by the addresses of the listeners that it was built from.

It wakes what waits for a peer inside a library that cannot be told to stop. The listeners themselves are never shut: gloo
ends the process when that happens.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Set
from ipaddress import ip_address

Address = tuple[str, int]


def normalised(host: str, port: int) -> Address:
    """As it is compared: without a zone, and IPv4 as such where it is mapped into IPv6."""
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), port


def shut_connected_to(listeners: Set[Address]) -> int:
    """All that have one of the listeners, which are normalised, at either end; returns how many."""
    return sum(_shut_if_known(int(name), listeners) for name in os.listdir("/proc/self/fd")) if listeners else 0


def _shut_if_known(descriptor: int, known: Set[Address]) -> bool:
    try:
        copy = os.dup(descriptor)
    except OSError:
        return False  # closed meanwhile
    if not stat.S_ISSOCK(os.fstat(copy).st_mode):
        os.close(copy)
        return False
    with socket.socket(fileno=copy) as duplicate:
        try:
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            ends = (normalised(*duplicate.getsockname()[:2]), normalised(*duplicate.getpeername()[:2]))
            if known.isdisjoint(ends):
                return False
            duplicate.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            return False
    return True
