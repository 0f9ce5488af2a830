"""The store of several servers, or of one that may be restarted: an etcd cluster.

Built on etcd's v3 protocol with channels of our own and the generated stubs of the package `aetcd`; its client knows
neither several endpoints nor TLS. A key's version is its `mod_revision`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ..store import Fence, FenceLost, Held, Store, StoreUnavailable
from .address import EtcdAddress
from .answers import EtcdError, Meaning
from .api import rpc
from .cluster import CALL_SECONDS, PAUSE_SECONDS, EtcdCluster
from .member import EtcdMember, Metadata
from .watch import Snapshot, changes_since

_PAGE = 200  # keys in one answer: with values of 64 KiB each still a moderate message


class EtcdStore(Store):
    """Connects at the first call. All calls come from one event loop.

    A change whose answer was lost raises StoreUnavailable rather than being made again: the second attempt would find
    the first one's value and take it for another's. UsageError if etcd refuses: a wrong password, a missing right.
    """

    def __init__(self, address: EtcdAddress) -> None:
        self._prefix = address.prefix
        self._cluster = EtcdCluster(address)

    async def get(self, key: str) -> Held | None:
        response = await self._range(f"read {key!r}", rpc.RangeRequest(key=self._name(key)))
        return _held(response.kvs[0]) if response.kvs else None

    async def read(self, prefix: str) -> dict[str, Held]:
        return (await self._snapshot(prefix)).content

    async def compare_and_set(
        self, key: str, value: bytes, version: int, *, lease: int = 0, fence: Fence | None = None
    ) -> int | None:
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=self._name(key), value=value, lease=lease))
        try:
            response = await self._change(f"set {key!r}", key, version, put, fence)
        except EtcdError as error:
            if error.meaning is not Meaning.LEASE_OVER:
                raise
            raise FenceLost(f"the lease of {key!r} is over") from None
        return int(response.header.revision) if response.succeeded else None

    async def delete(self, key: str, version: int, *, fence: Fence | None = None) -> bool:
        delete = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._name(key)))
        response = await self._change(f"delete {key!r}", key, version, delete, fence)
        return bool(response.succeeded and response.responses[0].response_delete_range.deleted)

    async def grant(self, seconds: float) -> int:
        request = rpc.LeaseGrantRequest(TTL=max(1, math.ceil(seconds)))

        async def attempt(member: EtcdMember, limit: float, metadata: Metadata) -> int:
            return int((await member.call(member.lease.LeaseGrant, request, limit, metadata)).ID)

        # Made again if need be: a lease that nobody knows ends by itself.
        return await self._cluster.ask("grant a lease", attempt, again=True)

    async def renew(self, lease: int) -> bool:
        """A leader of etcd that was cut off can confirm a lease for about as long as an election takes. Fences hold."""

        async def attempt(member: EtcdMember, limit: float, metadata: Metadata) -> bool:
            stream = member.keep_alive(limit, metadata)
            try:
                await stream.send(rpc.LeaseKeepAliveRequest(ID=lease), limit)
                response = await stream.receive(limit)
                if response is None:
                    raise EtcdError(Meaning.UNKNOWN, f"gave no answer within {limit:.1f} s")
                return int(response.TTL) > 0
            finally:
                await stream.close()

        try:
            return await self._cluster.ask("renew a lease", attempt, again=True)
        except EtcdError as error:
            if error.meaning is not Meaning.LEASE_OVER:
                raise
            return False

    async def revoke(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)

        async def attempt(member: EtcdMember, limit: float, metadata: Metadata) -> None:
            await member.call(member.lease.LeaseRevoke, request, limit, metadata)

        try:
            await self._cluster.ask("revoke a lease", attempt, again=True)
        except EtcdError as error:
            if error.meaning is not Meaning.LEASE_OVER:
                raise

    async def watch(self, prefix: str) -> AsyncGenerator[dict[str, Held], None]:
        """Reads, follows the changes since, and reads again whenever that ends, for whatever reason."""
        now = asyncio.get_running_loop().time
        shown: dict[str, Held] | None = None
        gave_nothing_since: float | None = None
        while True:
            snapshot = await self._snapshot(prefix)
            if snapshot.content != shown:
                shown = snapshot.content
                yield dict(shown)
            try:
                name = self._name(prefix)
                async with aclosing(changes_since(snapshot, self._cluster, name, after_prefix(name))) as changes:
                    async for content in changes:
                        gave_nothing_since = None
                        if content is not None:
                            shown = content
                            yield dict(shown)
            except EtcdError as error:
                gave_nothing_since = gave_nothing_since or now()
                if now() - gave_nothing_since > CALL_SECONDS:
                    raise StoreUnavailable(f"etcd answers, but cannot be watched: {error}") from None
                await asyncio.sleep(PAUSE_SECONDS)

    async def close(self) -> None:
        await self._cluster.close()

    def _name(self, key: str) -> bytes:
        return (self._prefix + key).encode("ascii")

    async def _range(self, what: str, request: Any) -> Any:
        async def attempt(member: EtcdMember, limit: float, metadata: Metadata) -> Any:
            return await member.call(member.kv.Range, request, limit, metadata)

        return await self._cluster.ask(what, attempt, again=True)

    async def _snapshot(self, prefix: str) -> Snapshot:
        """All pages at the first one's revision; from the start if that was compacted in between."""
        first = self._name(prefix)
        while True:
            content: dict[str, Held] = {}
            request = rpc.RangeRequest(key=first, range_end=after_prefix(first), limit=_PAGE)
            try:
                while True:
                    response = await self._range(f"read {prefix!r}", request)
                    for found in response.kvs:
                        content[found.key.decode("ascii")[len(self._prefix) :]] = _held(found)
                    request.revision = request.revision or response.header.revision
                    if not response.more:
                        return Snapshot(content, request.revision, len(self._prefix))
                    request.key = response.kvs[-1].key + b"\0"
            except EtcdError as error:
                if error.meaning is not Meaning.COMPACTED:
                    raise

    async def _change(self, what: str, key: str, version: int, operation: Any, fence: Fence | None) -> Any:
        """One transaction: `operation` if key and fence are at their versions. FenceLost if the fence is not."""
        expected = [(self._name(key), version)]
        if fence is not None:
            expected.append((self._name(fence.key), fence.version))
        request = rpc.TxnRequest(
            compare=[
                rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=name, mod_revision=revision)
                for name, revision in expected
            ],
            success=[operation],
            failure=[
                rpc.RequestOp(request_range=rpc.RangeRequest(key=name, keys_only=True)) for name, _ in expected[1:]
            ],
        )

        async def attempt(member: EtcdMember, limit: float, metadata: Metadata) -> Any:
            return await member.call(member.kv.Txn, request, limit, metadata)

        response = await self._cluster.ask(what, attempt, again=False)
        if fence is not None and not response.succeeded:
            found = response.responses[0].response_range.kvs
            if (found[0].mod_revision if found else 0) != fence.version:
                raise FenceLost(f"{fence.key!r} is not at version {fence.version} any more")
        return response


def after_prefix(prefix: bytes) -> bytes:
    """The first name behind all that begin with `prefix`, which is ASCII and not empty."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _held(found: Any) -> Held:
    return Held(bytes(found.value), int(found.mod_revision))
