"""Shutting down this process's connected sockets of a ring, by the addresses of the listeners that it was built from."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable


def shut_connected_to(listeners: Iterable[tuple[str, int]]) -> int:
    """All that have one of the listeners at either end; the listeners themselves are left alone. Returns how many."""
    known = set(listeners)
    return sum(_shut_if_known(int(name), known) for name in os.listdir("/proc/self/fd")) if known else 0


def _shut_if_known(descriptor: int, known: set[tuple[str, int]]) -> bool:
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
            if known.isdisjoint((duplicate.getsockname()[:2], duplicate.getpeername()[:2])):
                return False
            duplicate.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            return False
    return True
