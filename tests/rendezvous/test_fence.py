"""A leader that stood still while another took over, and then goes on where it stopped, decides nothing any more."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from elastic_launch.rendezvous.messages import (
    Announce,
    Broken,
    Formed,
    Hello,
    JobSpec,
    Ready,
    Registered,
    Release,
    Started,
    Welcome,
    WorkerClaim,
)
from elastic_launch.rendezvous.server import Election, Server
from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.records import JobRecords

from .conftest import Agent, Dial, Run
from .etcds import Etcd, running_etcd

SPEC = JobSpec(1, 3)


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with running_etcd("3.4") as etcd:
        yield etcd


class Stopping:
    """The process of `stopping_server.py`."""

    def __init__(self, store: str, when: str, mode: str) -> None:
        command = [sys.executable, str(Path(__file__).parent / "stopping_server.py"), store, when, mode]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    async def stands_still(self) -> None:
        async with asyncio.timeout(10):
            while self._state() != "T":
                await asyncio.sleep(0.01)

    def _state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2][0]

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@asynccontextmanager
async def stopping(store: str, when: str, mode: str) -> AsyncIterator[Stopping]:
    server = Stopping(store, when, mode)
    try:
        yield server
    finally:
        server.end()


async def greet(agent: Agent, name: str, *claims: WorkerClaim, announced: int = 0) -> None:
    async with asyncio.timeout(10):
        await agent.say(Hello(name, f"host of {name}", "127.0.0.1:1", SPEC, [*claims], announced))
        await agent.hears(Welcome)


async def become_ready(agent: Agent, name: str) -> None:
    await greet(agent, name)
    for message in (Started(name, 0), Registered(name), Ready(name)):
        await agent.say(message)


async def decided_by_the_deposed(etcd: Etcd, dial: Dial, when: str, mode: str) -> tuple[bool, bool]:
    """Whether the old leader, after another has taken over, released anybody, and whether it made anything durable."""
    prefix = f"/{when}-{mode.replace(' ', '-')}/"
    address = EtcdAddress((etcd.endpoint,), prefix=prefix)
    store = EtcdStore(address)
    records = JobRecords(store, "digits")
    async with stopping(f"etcd://{etcd.endpoint}{prefix}", when, mode) as old:
        async with dial(old.url) as x, dial(old.url) as y:
            await become_ready(x, "x")
            await x.hears(Announce)
            await x.say(Formed("x", 1))
            await x.hears(Release)
            await become_ready(y, "y")
            await x.hears(Announce)
            await y.hears(Announce)
            await x.say(Formed("x", 2))
            await y.say(Formed("y", 2))
            await old.stands_still()
            new = await Server.start(store=EtcdStore(address), election=Election(lease=2.0))
            try:
                async with asyncio.timeout(10):
                    while not new._app.state.jobs.decides:
                        await asyncio.sleep(0.02)
                held = (await records.load()).formed
                async with dial(new.url) as moved:
                    claim = WorkerClaim("y", 0, "member", formed=2, lineage=held if held == 2 else 0)
                    await greet(moved, "y", claim, announced=2)
                    await y.connection.close()
                    old.go_on()
                    released = await says_more(x)
                    return released, (await records.load()).formed != held
            finally:
                await new.stop()
                await store.close()


async def says_more(agent: Agent) -> bool:
    """Whether an agent that has stayed with the old leader is released there, or gets a generation for a broken ring."""
    from websockets.exceptions import ConnectionClosed

    heard = False
    try:
        await agent.say(Broken("x", 2))
        async with asyncio.timeout(2.0):
            while True:
                message = await agent.heard()
                heard = heard or isinstance(message, Release)
                if isinstance(message, Announce):
                    await agent.say(Formed("x", message.generation))
    except (TimeoutError, ConnectionClosed):
        return heard


@pytest.mark.parametrize("mode", ["whole", "fence alone"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_deposed_leader_makes_nothing_durable(run: Run, etcd: Etcd, dial: Dial, when: str, mode: str) -> None:
    async def scenario() -> None:
        released, durable = await decided_by_the_deposed(etcd, dial, when, mode)
        assert not durable
        assert not released or (when, mode) == ("after", "fence alone"), "that much was durable in its own term"

    run(scenario())


@pytest.mark.parametrize("when", ["before", "after"])
def test_without_the_fence_it_would(run: Run, etcd: Etcd, dial: Dial, when: str) -> None:
    async def scenario() -> None:
        assert (await decided_by_the_deposed(etcd, dial, when, "no fence"))[1]

    run(scenario())
