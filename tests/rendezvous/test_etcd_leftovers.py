"""What ends with a call, a watch or a store, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from elastic_launch.rendezvous.stores.etcd.api import rpc
from elastic_launch.rendezvous.stores.etcd.cluster import EtcdCluster
from elastic_launch.rendezvous.stores.etcd.member import EtcdMember, Metadata
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.store import StoreUnavailable

from .conftest import LIMIT
from .counting import SLACK, address_of, run, seconds_until_unavailable
from .etcds import Etcd
from .test_store_watch import shown, watching


def test_a_closed_store_ends_what_is_in_progress(etcd: Etcd) -> None:
    async def scenario() -> None:
        store, connecting = (EtcdStore(address_of(etcd.endpoint)) for _ in range(2))
        async with watching(store, "") as watch:
            await shown(watch)
            etcd.pause()
            try:
                calls: list[Coroutine[Any, Any, Any]] = [
                    store.get("a"),
                    store.compare_and_set("a", b"", 0),
                    store.renew(1),
                    anext(watch),
                    connecting.get("a"),
                    connecting.compare_and_set("a", b"", 0),
                    anext(connecting.watch("")),
                ]
                waiting = [asyncio.ensure_future(seconds_until_unavailable(call)) for call in calls]
                await asyncio.sleep(0.2)
                await store.close()
                await connecting.close()
                assert max(await asyncio.gather(*waiting)) < 0.2 + SLACK / 2
            finally:
                etcd.mend()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get("a")

    run(scenario())


def test_a_call_that_is_about_to_be_sent_when_its_store_is_closed_is_told(etcd: Etcd) -> None:
    async def scenario() -> None:
        cluster = EtcdCluster(address_of(etcd.endpoint))

        async def attempt(member: EtcdMember, seconds: float, metadata: Metadata) -> None:
            await cluster.close()
            await member.call(member.kv.Range, rpc.RangeRequest(key=b"a"), seconds, metadata)

        with pytest.raises(StoreUnavailable, match="closed"):
            await cluster.ask("read", attempt, again=True)
        with pytest.raises(StoreUnavailable, match="closed"):
            await cluster.ask("read", attempt, again=True)

    run(scenario())


def test_a_cancelled_call_is_cancelled(etcd: Etcd) -> None:
    async def scenario() -> None:
        store, connecting = (EtcdStore(address_of(etcd.endpoint)) for _ in range(2))
        await store.get("a")
        etcd.pause()
        try:
            for call in (store.get("a"), store.renew(1), connecting.get("a")):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(call, 0.2)
        finally:
            etcd.mend()
        for each in (store, connecting):
            assert await each.get("a") is None
            await each.close()

    run(scenario())


def in_use() -> dict[str, int]:
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


@pytest.mark.parametrize("what", ["stores", "watches", "vain attempts"])
def test_nothing_is_left_behind(etcd: Etcd, what: str) -> None:
    async def use(store: EtcdStore) -> None:
        await store.renew(await store.grant(5))
        async with watching(store, "") as watch:
            await shown(watch)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})

    async def stores() -> None:
        store = EtcdStore(address_of(etcd.endpoint))
        await use(store)
        await store.close()

    async def watches() -> None:
        await use(shared)

    async def vain_attempts() -> None:
        store = EtcdStore(address_of(etcd.endpoint))
        for seconds in (0.02, 0.0):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(store.get("a"), seconds)
        await store.close()

    shared = EtcdStore(address_of(etcd.endpoint))
    kinds = {"stores": stores, "watches": watches, "vain attempts": vain_attempts}

    async def scenario() -> None:
        once = kinds[what]
        if what == "vain attempts":
            etcd.pause()
        for _ in range(5):
            await once()
        await asyncio.sleep(0.2)
        before = in_use()
        for _ in range(50):
            await once()
        ends = time.monotonic() + LIMIT
        while any(
            used > before[what] for what, used in in_use().items()
        ):  # a connection that is being made is given up after 2 s
            assert time.monotonic() < ends, (before, in_use())
            await asyncio.sleep(0.05)
        await shared.close()

    asyncio.run(scenario())


IN_THE_MIDDLE_OF_CALLS = """
import asyncio, subprocess, sys
from elastic_launch.rendezvous.stores.opening import open_store

async def main():
    store = open_store(sys.argv[1])
    watch = store.watch("")
    await anext(watch)
    async def call():
        while True:
            await store.get("a")
    calling = asyncio.ensure_future(call())
    for _ in range(20):
        await asyncio.to_thread(subprocess.run, ["true"], preexec_fn=lambda: None)
    calling.cancel()
    await watch.aclose()
    await store.close()

asyncio.run(main())
"""


def test_processes_are_started_beside_calls_without_a_word(etcd: Etcd) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_MIDDLE_OF_CALLS, f"etcd://{etcd.endpoint}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
