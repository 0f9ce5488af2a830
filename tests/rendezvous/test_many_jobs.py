"""Many jobs in one service: what has ended is kept for a while, and then nothing of it is left."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from elastic_launch.rendezvous.http.face import Face
from elastic_launch.rendezvous.http.limits import Limits
from elastic_launch.rendezvous.messages import (
    Announce,
    Done,
    Finished,
    Formed,
    Hello,
    JobSpec,
    Ready,
    Registered,
    Release,
    Started,
)
from elastic_launch.rendezvous.server import Election, Server
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore

from .conftest import Dial, Run
from .etcds import running_etcd

JOBS, AT_ONCE = 500, 20


async def short_job(dial: Dial, url: str, name: str) -> None:
    async with dial(url, name) as agent:
        await agent.say(Hello(f"agent of {name}", "host", "127.0.0.1:1", JobSpec(1, 1)))
        for message in (Started(name, 0), Registered(name), Ready(name)):
            await agent.say(message)
        await agent.hears(Announce)
        await agent.say(Formed(name, 1))
        await agent.hears(Release)
        await agent.say(Finished(name))
        await agent.hears(Done)


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_500_short_jobs_leave_nothing_behind(run: Run, dial: Dial, version: str) -> None:
    async def scenario() -> None:
        with running_etcd(version) as etcd:
            store = EtcdStore(etcd.address)
            face = Face(Limits(keep_finished=2.0))
            server = await Server.start(store=store, election=Election(lease=5.0), face=face)
            jobs = server._app.state.jobs
            try:
                async with asyncio.timeout(10):
                    while not jobs.decides:
                        await asyncio.sleep(0.01)
                await short_job(dial, server.url, "kept")
                assert "kept" in jobs.names() and "jobs/kept" in await store.read("jobs/")
                in_turn = asyncio.Semaphore(AT_ONCE)

                async def one(number: int) -> None:
                    async with in_turn:
                        await short_job(dial, server.url, f"job-{number}")

                await asyncio.gather(*(one(number) for number in range(JOBS)))
                async with asyncio.timeout(20):
                    while jobs.names() or await store.read("jobs/"):
                        await asyncio.sleep(0.1)
                assert list(await store.read("")) == ["leader"]
                assert not jobs._tasks and not jobs.connections
                assert len(psutil.Process().open_files()) + psutil.Process().num_fds() < 200
            finally:
                await server.stop()

    run(scenario())
