"""Where the few facts live that must outlive a server: a job's last formed generation, and whether it is done.

The interface is as small as several replicas allow: read, and replace what was read (compare-and-set). Everything else
about a job is told again by its agents when they connect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from ..errors import RendezvousError


class StoreUnavailable(RendezvousError):
    """The store does not answer. Whether the call in question took effect is not known: read again before deciding."""


class Held(NamedTuple):
    """A value and its fencing token: `version` grows with every change of the key and is never 0."""

    value: bytes
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
    async def compare_and_set(self, key: str, value: bytes, version: int) -> int | None:
        """Stores `value` if the key's version still is `version`, 0 for an absent key. When it returns, it is durable.

        Returns the new version, or None if the key's version is another one; then nothing has changed.
        """

    @abstractmethod
    async def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, sorted."""

    @abstractmethod
    async def close(self) -> None:
        """Ends connections; calls in progress may raise `StoreUnavailable`. May be called again."""


class MemoryStore(Store):
    """For one server, which then is the job's single point of failure: what it holds ends with its process."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    async def get(self, key: str) -> Held | None:
        return self._held.get(key)

    async def compare_and_set(self, key: str, value: bytes, version: int) -> int | None:
        held = self._held.get(key)
        if version != (held.version if held else 0):
            return None
        self._held[key] = Held(value, version + 1)
        return version + 1

    async def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._held if key.startswith(prefix))

    async def close(self) -> None:
        pass
