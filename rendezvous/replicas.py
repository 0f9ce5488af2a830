"""Finding the server that leads among its replicas: a list of URLs, names with several addresses, and what they answer."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

STATE = "elastic-rendezvous-state"
"""The header in which a replica that does not lead says why: "following", "electing" (nobody leads), "frozen" (no store)."""

_LOOK_UP = 5.0  # seconds
_HOPS = 3  # redirections in a row that are believed


@dataclass(frozen=True)
class Address:
    """One place to try: `options` are for `connect`, where a name has several addresses."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)


class ReplicaFinder:
    """Says where to try next: where a replica has pointed to, else the next address of the next URL, round and round."""

    def __init__(self, urls: Sequence[str]) -> None:
        """`urls` are WebSocket addresses."""
        self._urls = urls
        self._round: deque[Address] = deque()
        self._pointed_to = ""
        self._hops = 0

    async def next_address(self) -> Address:
        """OSError if none of the names is known."""
        if self._pointed_to:
            url, self._pointed_to = self._pointed_to, ""
            return Address(url)
        self._hops = 0
        if not self._round:
            self._round.extend(await self._look_up())
        return self._round.popleft()

    def follow(self, location: str) -> bool:
        """A replica says that the leader is at `location`. False if that is not to be believed."""
        parts = urlsplit(location)
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname or self._hops >= _HOPS:
            return False
        if parts.scheme in ("http", "ws") and all(url.startswith("wss:") for url in self._urls):
            return False  # what is told in secret is not said aloud because somebody points elsewhere
        self._hops += 1
        self._pointed_to = parts._replace(scheme=parts.scheme.replace("http", "ws")).geturl()
        return True

    def found(self) -> None:
        """The address that was tried last is the leader's: the list is gone through from its beginning next time."""
        self._round.clear()

    async def _look_up(self) -> list[Address]:
        found: list[Address] = []
        last: OSError | None = None
        for url in self._urls:
            parts = urlsplit(url)
            assert parts.hostname is not None
            lookup = asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
            try:
                answers = await asyncio.wait_for(lookup, _LOOK_UP)
            except asyncio.TimeoutError:
                last = OSError(f"the name {parts.hostname!r} could not be looked up within {_LOOK_UP:.0f} s")
                continue
            except OSError as error:
                last = error
                continue
            hosts = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
            if len(hosts) == 1:
                found.append(Address(url))
            else:
                found.extend(Address(url, {"host": host, "port": parts.port}) for host in hosts)
        if not found and last is not None:
            raise last
        return found
