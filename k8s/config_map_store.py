"""The store of a controller: a ConfigMap, so that what must outlive the server needs nothing but the cluster itself.

All keys are in one document, and the ConfigMap's resource version makes every change of it a compare-and-set. A change of
another key meanwhile costs one more round. Leases and watches are for servers that elect a leader, and are not offered.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from ..rendezvous.stores.store import Fence, FenceLost, Held, Store, StoreUnavailable
from .cluster import Cluster, Json
from .errors import ClusterError, Conflict

_FIELD = "store.json"
_ATTEMPTS = 20

T = TypeVar("T")


class ConfigMapStore(Store):
    """`name` is that of a ConfigMap that exists already. Several stores may share it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._in_turn = asyncio.Lock()

    async def get(self, key: str) -> Held | None:
        return (await self._content()).keys.get(key)

    async def read(self, prefix: str) -> dict[str, Held]:
        keys = (await self._content()).keys
        return {key: keys[key] for key in sorted(keys) if key.startswith(prefix)}

    async def compare_and_set(
        self, key: str, value: bytes, version: int, *, lease: int = 0, fence: Fence | None = None
    ) -> int | None:
        if lease:
            raise NotImplementedError("a store in a ConfigMap has no leases")

        def change(content: _Content) -> int | None:
            content.check(fence)
            if content.version(key) != version:
                return None
            content.revision += 1
            content.keys[key] = Held(value, content.revision)
            return content.revision

        return await self._change(change)

    async def delete(self, key: str, version: int, *, fence: Fence | None = None) -> bool:
        def change(content: _Content) -> bool:
            content.check(fence)
            if key not in content.keys or content.version(key) != version:
                return False
            content.revision += 1
            del content.keys[key]
            return True

        return await self._change(change)

    async def grant(self, seconds: float) -> int:
        raise NotImplementedError("a store in a ConfigMap has no leases")

    async def renew(self, lease: int) -> bool:
        raise NotImplementedError("a store in a ConfigMap has no leases")

    async def revoke(self, lease: int) -> None:
        raise NotImplementedError("a store in a ConfigMap has no leases")

    def watch(self, prefix: str) -> AsyncGenerator[dict[str, Held], None]:
        raise NotImplementedError("a store in a ConfigMap is not watched")

    async def close(self) -> None:
        pass

    async def _content(self) -> _Content:
        return _Content(await self._call(self._cluster.config_map, self._name))

    async def _change(self, change: Callable[[_Content], T]) -> T:
        """`change` is done to the newest content, and again if somebody else was faster."""
        async with self._in_turn:
            for _ in range(_ATTEMPTS):
                content = await self._content()
                before = content.revision
                result = change(content)
                if content.revision == before:
                    return result
                try:
                    await self._call(self._cluster.replace_config_map, content.encoded())
                except Conflict:
                    continue
                return result
        raise StoreUnavailable(f"the ConfigMap {self._name} changes faster than this server can write it")

    async def _call(self, call: Callable[..., Json], *arguments: Any) -> Json:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)
        except Conflict:
            raise
        except ClusterError as error:
            raise StoreUnavailable(f"the ConfigMap {self._name}: {error}") from error


class _Content:
    """The document of one ConfigMap, as it was read."""

    def __init__(self, config_map: Json) -> None:
        self._config_map = config_map
        document = json.loads((config_map.get("data") or {}).get(_FIELD, "{}"))
        self.revision: int = document.get("revision", 0)
        self.keys = {
            key: Held(base64.b64decode(value), version) for key, (version, value) in document.get("keys", {}).items()
        }

    def version(self, key: str) -> int:
        held = self.keys.get(key)
        return held.version if held else 0

    def check(self, fence: Fence | None) -> None:
        if fence is not None and self.version(fence.key) != fence.version:
            raise FenceLost(f"{fence.key!r} is not at version {fence.version} any more")

    def encoded(self) -> Json:
        keys = {key: [held.version, base64.b64encode(held.value).decode()] for key, held in self.keys.items()}
        document = json.dumps({"revision": self.revision, "keys": keys})
        return {**self._config_map, "data": {**(self._config_map.get("data") or {}), _FIELD: document}}
