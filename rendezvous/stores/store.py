"""Where the few facts live that must outlive a server: who leads, a job's last formed generation, whether it is done.

The interface is as small as several replicas allow: read, replace what was read (compare-and-set, fenced by another
key), be told of changes, and let keys end with their owner (leases). Everything else about a job is told again by its
agents when they connect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import NamedTuple

from ...errors import RendezvousError


class StoreUnavailable(RendezvousError):
    """The store does not answer. Whether the call in question took effect is not known: read again before deciding."""


class FenceLost(RendezvousError):
    """The key that fenced a change is not what it was: somebody else is in its owner's place. Nothing was changed."""


class Held(NamedTuple):
    """A value and its fencing token: `version` grows with every change in the store and is never 0."""

    value: bytes
    version: int


class Fence(NamedTuple):
    """A change goes through only while `key` still has this `version`."""

    key: str
    version: int


class Store(ABC):
    """Keys with compare-and-set. Calls are made from one event loop; several may be in progress at once.

    Every call answers from the newest value that any replica has been told was stored (linearizable), or raises
    `StoreUnavailable` within a few seconds; none blocks for ever. Keys are short ASCII text, values up to 64 KiB.
    """

    @abstractmethod
    async def get(self, key: str) -> Held | None:
        """What the key holds, None if it is absent."""

    @abstractmethod
    async def read(self, prefix: str) -> dict[str, Held]:
        """All keys that begin with `prefix`, in their order, as they were at one moment."""

    @abstractmethod
    async def compare_and_set(
        self, key: str, value: bytes, version: int, *, lease: int = 0, fence: Fence | None = None
    ) -> int | None:
        """Stores `value` if the key's version still is `version`, 0 for an absent key. When it returns, it is durable.

        Returns the new version, or None if the key's version is another one; then nothing has changed. With `lease`, the
        key goes when the lease does; a lease that is over already is as a lost fence. FenceLost as its name says.
        """

    @abstractmethod
    async def delete(self, key: str, version: int, *, fence: Fence | None = None) -> bool:
        """Removes the key if its version still is `version`. False if it is not; then nothing has changed."""

    @abstractmethod
    async def grant(self, seconds: float) -> int:
        """A new lease, never 0, that ends `seconds` (at least) after it was last granted or renewed."""

    @abstractmethod
    async def renew(self, lease: int) -> bool:
        """Whether the lease was still there and lasts its full time again."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """Ends the lease with all its keys, if it is there."""

    @abstractmethod
    def watch(self, prefix: str) -> AsyncGenerator[dict[str, Held], None]:
        """What `read` returns, now and after each change; changes that come close together may come as one.

        Whatever happens to the connection or to the store's history, the newest content comes in the end. Raises
        `StoreUnavailable` when the store does not answer; then watch again. Close the iterator (`aclose`) when done.
        """

    @abstractmethod
    async def close(self) -> None:
        """Ends connections; calls in progress may raise `StoreUnavailable`. May be called again."""
