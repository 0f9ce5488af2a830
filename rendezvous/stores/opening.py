"""The store that a user names."""

from __future__ import annotations

from ...errors import UsageError
from .etcd.address import EXAMPLE, EtcdAddress
from .memory import MemoryStore
from .store import Store


def open_store(text: str) -> Store:
    """`memory`, or the address of an etcd (`EtcdAddress.parse`). Connects at the first call, not here.

    UsageError if there is no such store, a file it names cannot be read, or a package is missing.
    """
    if text == "memory":
        return MemoryStore()
    if text.startswith(("etcd:", "etcds:")):
        return open_etcd(EtcdAddress.parse(text))
    raise UsageError(f"{text!r} is not a store: give memory, {EXAMPLE}")


def open_etcd(address: EtcdAddress) -> Store:
    """UsageError if a package is missing, or a file that the address names cannot be read."""
    from .etcd.store import EtcdStore  # gRPC is imported only where it is used

    return EtcdStore(address)
