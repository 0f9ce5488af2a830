"""The etcd store when one of three members fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from elastic_launch.rendezvous.stores.etcd.api import grpc, rpc
from elastic_launch.rendezvous.stores.etcd.cluster import ATTEMPT_SECONDS
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore

from .counting import SLACK, SLOW, Counter, address_of, run, seconds_of
from .etcds import Etcd, running_cluster
from .test_store_watch import shown, shown_in_the_end, watching


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Etcd]]:
    with running_cluster("3.4") as members:
        yield members


@pytest.mark.parametrize("fault", [Etcd.kill, Etcd.pause])
def test_the_loss_of_one_of_three_members_costs_a_call_about_a_second(
    cluster: list[Etcd], fault: Callable[[Etcd], None]
) -> None:
    async def scenario() -> None:
        follower = await one_that_follows(cluster)
        first = [follower, *(member for member in cluster if member is not follower)]
        address = address_of(*(member.endpoint for member in first))
        store, other = EtcdStore(address), EtcdStore(replace(address, endpoints=address.endpoints[1:]))
        await store.compare_and_set("a", b"one", 0)
        async with watching(store, "") as watch:
            await shown(watch)
            fault(follower)
            try:
                assert await seconds_of(store.get("a")) < ATTEMPT_SECONDS + SLACK
                begun = time.monotonic()
                for number in range(20):
                    assert await store.compare_and_set(f"b/{number}", b"", 0)
                assert time.monotonic() - begun < 5 * ATTEMPT_SECONDS, "they do not wait for the lost one again"
                lease = await store.grant(60)
                assert await store.renew(lease)
                held = await other.get("a")
                assert held is not None
                await other.compare_and_set("a", b"two", held.version)
                wanted = {"a": b"two"} | {f"b/{number}": b"" for number in range(20)}
                await shown_in_the_end(watch, wanted)
            finally:
                follower.mend()
        await store.close()
        await other.close()

    run(scenario())


@pytest.mark.parametrize("fault", [Etcd.kill, Etcd.pause])
def test_counting_goes_on_when_the_leader_is_lost(cluster: list[Etcd], fault: Callable[[Etcd], None]) -> None:
    async def scenario() -> None:
        leader = await the_leader(cluster)
        store = EtcdStore(address_of(*(member.endpoint for member in cluster)))
        counter = Counter(store, "count")
        counting = asyncio.ensure_future(counter.count())
        async with watching(store, "") as watch:
            await shown(watch)
            await counter.until_confirmed(10)
            fault(leader)
            try:
                assert await seconds_of(counter.until_confirmed(10)) < SLOW + 2, "one lost change and an election"
                counter.stop()
                await counting
                held = await store.get("count")
                assert held is not None
                await shown_in_the_end(watch, {"count": held.value})
            finally:
                leader.mend()
        await store.close()

    run(scenario())


async def the_leader(members: list[Etcd]) -> Etcd:
    while True:
        for member in members:
            async with grpc.aio.insecure_channel(member.endpoint) as channel:
                status = await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), wait_for_ready=True, timeout=20)
                if status.leader == status.header.member_id:
                    return member
        await asyncio.sleep(0.1)


async def one_that_follows(members: list[Etcd]) -> Etcd:
    leader = await the_leader(members)
    return next(member for member in members if member is not leader)
