"""Several servers on one store: one leads, the others say who, and its end costs nobody anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.messages import Announce, Done, Exited, Finished, Release, Restart, Started
from elastic_launch.rendezvous.server import Election, Server
from elastic_launch.rendezvous.stores.memory import MemoryStore
from elastic_launch.rendezvous.stores.store import Fence, Held, Store, StoreUnavailable

from .agents import Agent, new_agent, run_together
from .conftest import Run, Until

LEASE = 2.0  # seconds


class Line(Store):
    """One server's line to the store, which can be cut."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_cut = False

    async def get(self, key: str) -> Held | None:
        self._check()
        return await self._store.get(key)

    async def read(self, prefix: str) -> dict[str, Held]:
        self._check()
        return await self._store.read(prefix)

    async def compare_and_set(
        self, key: str, value: bytes, version: int, *, lease: int = 0, fence: Fence | None = None
    ) -> int | None:
        self._check()
        return await self._store.compare_and_set(key, value, version, lease=lease, fence=fence)

    async def delete(self, key: str, version: int, *, fence: Fence | None = None) -> bool:
        self._check()
        return await self._store.delete(key, version, fence=fence)

    async def grant(self, seconds: float) -> int:
        self._check()
        return await self._store.grant(seconds)

    async def renew(self, lease: int) -> bool:
        self._check()
        return await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        self._check()
        await self._store.revoke(lease)

    async def watch(self, prefix: str) -> AsyncGenerator[dict[str, Held], None]:
        changes = self._store.watch(prefix)
        upcoming = asyncio.ensure_future(anext(changes))
        try:
            while True:
                self._check()
                done, _ = await asyncio.wait([upcoming], timeout=0.05)
                if done:
                    yield upcoming.result()
                    upcoming = asyncio.ensure_future(anext(changes))
        finally:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
            await changes.aclose()

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.is_cut:
            raise StoreUnavailable("the line is cut")


class Replica:
    def __init__(self, server: Server, line: Line) -> None:
        self.server, self.line = server, line
        self.url = server.url
        self.leadership = server._app.state.leadership
        self.jobs = server._app.state.jobs

    @property
    def leads(self) -> bool:
        return bool(self.jobs.decides)

    def membership(self) -> Any:
        return self.jobs.get("digits")._membership


class Service:
    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas = replicas
        self.urls = [replica.url for replica in replicas]

    @property
    def leader(self) -> Replica:
        (leader,) = [replica for replica in self.replicas if replica.leads]
        return leader

    @property
    def followers(self) -> list[Replica]:
        return [replica for replica in self.replicas if not replica.leads]


@asynccontextmanager
async def serving(count: int, **timing: float) -> AsyncIterator[Service]:
    store = MemoryStore()
    replicas = []
    for _ in range(count):
        line = Line(store)
        server = await Server.start(store=line, timing=Timing(**timing), election=Election("", LEASE))
        replicas.append(Replica(server, line))
    service = Service(replicas)
    try:
        await wait_until(lambda: any(replica.leads for replica in replicas))
        await wait_until(lambda: all(replica.leadership.leader_url for replica in replicas))
        yield service
    finally:
        await asyncio.gather(*(replica.server.stop() for replica in replicas))


async def wait_until(condition: Any, limit: float = 10.0) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.005)


async def get(url: str, path: str, follow: bool = False) -> httpx.Response:
    async with httpx.AsyncClient(follow_redirects=follow, trust_env=False) as client:
        return await client.get(url + path)


def test_one_leads_and_the_others_say_who(run: Run) -> None:
    async def scenario() -> None:
        async with serving(3) as service:
            assert len(service.followers) == 2
            for follower in service.followers:
                answer = await get(follower.url, "/v1/jobs?some=thing")
                assert answer.status_code == 307
                assert answer.headers["location"] == f"{service.leader.url}/v1/jobs?some=thing"
                assert (await get(follower.url, "/v1/jobs", follow=True)).status_code == 200
                assert (await get(follower.url, "/healthz")).status_code == 200
                async with new_agent(follower.url, f"agent of {follower.url}") as agent:
                    await wait_until(lambda agent=agent: agent.client.connected)
                    assert [*service.leader.jobs.connections] and not follower.jobs.connections

    run(scenario())


@pytest.mark.parametrize("stop", ["in order", "its line to the store is cut"])
def test_another_takes_over_and_the_ring_goes_on(run: Run, stop: str) -> None:
    async def scenario() -> None:
        async with serving(2) as service:
            async with new_agent(service.urls, "a") as a, new_agent(service.urls, "b") as b:
                generation = await run_together(a, b)
                old, (new,) = service.leader, service.followers
                if stop == "in order":
                    await old.server.stop()
                else:
                    old.line.is_cut = True
                await wait_until(lambda: new.leads)
                assert not old.leads
                await wait_until(lambda: a.client.connected and b.client.connected and new.jobs.get("digits"))
                await wait_until(lambda: new.membership().state == "running")
                await asyncio.sleep(0.3)
                assert (a.count(Announce), b.count(Announce)) == (1, 1)
                async with new_agent(service.urls, "c") as c:
                    c.become_ready()
                    joined = await a.hears(Announce, lambda message: message.world_size == 3)
                    assert (joined.formed, joined.abort) == (generation, False)
                    for agent in (a, b, c):
                        await agent.hears(Release, lambda message: message.generation == joined.generation)

    run(scenario())


def test_what_happens_while_nobody_decides_is_handled_within_2_s_of_the_return(run: Run) -> None:
    async def scenario() -> None:
        async with serving(2) as service, new_agent(service.urls, "a") as a, new_agent(service.urls, "b") as b:
            generation = await run_together(a, b)
            for replica in service.replicas:
                replica.line.is_cut = True
            await wait_until(lambda: not any(replica.leads for replica in service.replicas))
            await wait_until(lambda: all(replica.leadership.state == "frozen" for replica in service.replicas))
            answer = await get(service.urls[0], "/v1/jobs")
            assert answer.status_code == 503 and "decisions are frozen" in answer.json()["detail"]
            async with new_agent(service.urls, "c") as c:
                c.become_ready()
                await asyncio.sleep(3 * LEASE)
                assert a.lease_until > time.monotonic() and b.lease_until > time.monotonic(), "nobody says: frozen"
                assert (a.count(Announce), b.count(Announce), c.count(Announce)) == (1, 1, 0)
                for replica in service.replicas:
                    replica.line.is_cut = False
                await wait_until(lambda: any(replica.leads for replica in service.replicas))
                began = time.monotonic()
                joined = await c.hears(Announce)
                assert time.monotonic() - began < 2.0
                assert (joined.world_size, joined.formed, joined.abort) == (3, generation, False)

    run(scenario())


def test_a_short_silence_of_the_store_costs_nothing_and_a_planned_change_waits_for_it(run: Run) -> None:
    async def scenario() -> None:
        async with serving(1) as service, new_agent(service.urls, "a") as a, new_agent(service.urls, "b") as b:
            await run_together(a, b)
            leader = service.leader
            async with new_agent(service.urls, "c") as c:
                await wait_until(lambda: c.client.connected)
                leader.line.is_cut = True
                c.become_ready()
                await asyncio.sleep(0.15 * LEASE)
                assert (a.count(Announce), b.count(Announce)) == (1, 1), (
                    "they would have waited for a store that is away"
                )
                leader.line.is_cut = False
                assert leader.leads
                joined = await c.hears(Announce)
                await a.hears(Release, lambda message: message.generation == joined.generation)

    run(scenario())


def test_the_next_leader_knows_the_budget_and_who_was_asked_to_leave(run: Run) -> None:
    async def scenario() -> None:
        async with serving(2) as service:
            async with new_agent(service.urls, "a") as a, new_agent(service.urls, "b") as b:
                await run_together(a, b)
                old, (new,) = service.leader, service.followers
                b.client.send(Started("another", 1))
                b.client.send(Exited("another", 1, "crash", local_rank=1))
                await b.hears(Restart)
                await asyncio.wait_for(old.jobs.get("digits").kept(), 5)
                async with httpx.AsyncClient(trust_env=False) as client:
                    answer = await client.post(f"{old.url}/v1/jobs/digits/drain", json={"worker": "nobody"})
                    assert answer.status_code == 404
                await old.server.stop()
                await wait_until(lambda: new.leads and new.jobs.get("digits") and new.membership() is not None)
                assert new.membership().facts.crashes == 1
                await wait_until(lambda: a.client.connected and b.client.connected)
                async with httpx.AsyncClient(trust_env=False) as client:
                    answer = await client.post(f"{new.url}/v1/jobs/digits/drain", json={"worker": b.worker})
                    assert answer.status_code == 202
                record = (await new.line.read("jobs/"))["jobs/digits"]
                assert b.worker.encode() in record.value, "it was answered before it was durable"

    run(scenario())


def test_a_job_that_is_done_is_done_for_the_next_leader_too(run: Run) -> None:
    async def scenario() -> None:
        async with serving(2) as service:
            async with new_agent(service.urls, "a") as a:
                await run_together(a)
                a.phase = "finished"
                a.client.send(Finished(a.worker))
                await a.hears(Done)
            old, (new,) = service.leader, service.followers
            await old.server.stop()
            await wait_until(lambda: new.leads)
            async with new_agent(service.urls, "late") as late:
                await late.hears(Done)

    run(scenario())


class OutOfTerm(Agent):
    """An agent that has met a newer leader than any that there is."""

    def meet(self, term: int) -> None:
        self.client._term = term


def test_an_agent_does_not_follow_a_leader_of_an_older_term(run: Run, until: Until) -> None:
    async def scenario() -> None:
        async with serving(1) as service:
            agent = OutOfTerm(service.urls, "a")
            agent.meet(10**9)
            try:
                await asyncio.sleep(0.5)
                assert not agent.client.connected and not agent.told
                agent.meet(0)
                await until(lambda: agent.client.connected)
            finally:
                await agent.leave()

    run(scenario())
