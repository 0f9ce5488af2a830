"""The changes since a revision, from one member's stream, for as long as that member shows that it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from ..store import Held
from .answers import EtcdError, Meaning
from .api import rpc
from .cluster import ATTEMPT_SECONDS, EtcdCluster
from .stream import EtcdStream

SILENCE_SECONDS = 1.0  # then the member is asked for a sign
SIGN_SECONDS = 1.0  # for that sign
STREAM_SECONDS = 30.0  # then all is read again: releases of etcd are known that lose events of slow watchers
_SETTLING_SECONDS = 0.003  # changes that come this close together are shown as one


@dataclass(frozen=True)
class Snapshot:
    """What a prefix held at `revision`. In etcd the keys' names are longer, by `extra` characters in front."""

    content: dict[str, Held]
    revision: int
    extra: int


async def changes_since(
    snapshot: Snapshot, cluster: EtcdCluster, first: bytes, behind: bytes
) -> AsyncGenerator[dict[str, Held] | None, None]:
    """None when the stream stands, then the content after each change. Ends when the stream does, or has become old.

    `first` and `behind` bound the names. EtcdError if the stream does not come to stand.
    """
    now = asyncio.get_running_loop().time
    ends = now() + STREAM_SECONDS
    member = cluster.current()
    content = dict(snapshot.content)
    await member.connect(ATTEMPT_SECONDS)
    stream = member.watch(await cluster.stream_metadata(member))
    stands = False
    try:
        create = rpc.WatchCreateRequest(key=first, range_end=behind, start_revision=snapshot.revision + 1)
        await stream.send(rpc.WatchRequest(create_request=create), ATTEMPT_SECONDS)
        while now() < ends:
            response = await _next_or_sign_of_life(stream)
            has_changed = False
            while response is not None:
                if response.canceled:
                    if not response.compact_revision:
                        raise EtcdError(Meaning.UNKNOWN, f"cancelled the watch: {response.cancel_reason}")
                    return
                if response.created:
                    stands = True
                    yield None
                has_changed |= _apply(response.events, content, snapshot)
                response = await stream.receive(_SETTLING_SECONDS)
            if has_changed:
                yield dict(sorted(content.items()))
    except EtcdError:
        cluster.pass_over(member)
        if not stands:
            cluster.forget_login()
            raise
    finally:
        await stream.close()


async def _next_or_sign_of_life(stream: EtcdStream) -> Any:
    """The stream's next response; one is asked for when none comes by itself."""
    response = await stream.receive(SILENCE_SECONDS)
    if response is None:
        await stream.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()), SIGN_SECONDS)
        response = await stream.receive(SIGN_SECONDS)
        if response is None:
            raise EtcdError(Meaning.UNKNOWN, f"gave no sign of life for {SILENCE_SECONDS + SIGN_SECONDS:.0f} s")
    return response


def _apply(events: Any, content: dict[str, Held], snapshot: Snapshot) -> bool:
    """Whether anything has changed."""
    # Releases of etcd are known that show a member's older revisions to a watch that begins behind them.
    fresh = [event for event in events if event.kv.mod_revision > snapshot.revision]
    for event in fresh:
        key = event.kv.key.decode("ascii")[snapshot.extra :]
        if event.type == rpc.Event.PUT:
            content[key] = Held(bytes(event.kv.value), int(event.kv.mod_revision))
        else:
            content.pop(key, None)
    return bool(fresh)
