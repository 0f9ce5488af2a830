"""`TF_CONFIG` of a worker that stays while others come and go: it says the place that the worker has at present."""

from __future__ import annotations

import functools
import os
import socket
from typing import Protocol

from ..rendezvous.tf_config import TF_CONFIG, tf_config

__all__ = ["address_on", "keep_current", "tf_config"]


class Ring(Protocol):
    @property
    def rank(self) -> int: ...

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Everybody's `data` in rank order."""
        ...


def keep_current(ring: Ring, address: str) -> None:
    """Set the variable for the members of this ring, each of which says its own HOST:PORT. Raises `RingError`."""
    addresses = [each.decode() for each in ring.gather_bytes(address.encode())]
    os.environ[TF_CONFIG] = tf_config(addresses, ring.rank)


@functools.cache
def address_on(host: str) -> str:
    """HOST:PORT with a port that was free when first asked for: nobody listens there but what the script starts."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
