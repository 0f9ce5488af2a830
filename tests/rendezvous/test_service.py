"""Server, machine and clients together: agents without real workers, over real sockets and a real server process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import pytest
from websockets.asyncio.client import ClientConnection

from elastic_launch.rendezvous.client import Client
from elastic_launch.rendezvous.members import Timing
from elastic_launch.rendezvous.memory_store import MemoryStore
from elastic_launch.rendezvous.messages import (
    Announce,
    Beat,
    Done,
    Evicted,
    Failed,
    Finished,
    Formed,
    Hello,
    JobSpec,
    Ready,
    Registered,
    Release,
    Started,
    ToAgent,
    WorkerClaim,
    encode,
)
from elastic_launch.rendezvous.server import Server

from .conftest import Run

M = TypeVar("M", bound=ToAgent)
SPEC = JobSpec(min=1, max=3)


class ForgetfulClient(Client):
    """A client that can be made to forget its heartbeats, as if its host did not run."""

    is_mute = False

    async def _beat(self, connection: ClientConnection, period: float) -> None:
        while not self.is_mute:
            await asyncio.sleep(period)
            await connection.send(encode(Beat()), text=True)
        await asyncio.Event().wait()


class Agent:
    """An agent with one worker, which forms whatever is announced to it."""

    def __init__(self, url: str, name: str) -> None:
        self.worker = f"worker of {name}"
        self.told: list[ToAgent] = []
        self.phase, self.formed, self.announced = "preparing", 0, 0
        self._name = name
        self._news = asyncio.Event()
        self.client = ForgetfulClient([url], "digits", self._hello, self._hear)
        self._task = asyncio.ensure_future(self.client.run())

    def _hello(self) -> Hello:
        claim = WorkerClaim(self.worker, 0, self.phase, formed=self.formed, lineage=self.formed)
        return Hello(self._name, f"host of {self._name}", "127.0.0.1:1", SPEC, [claim], self.announced)

    def _hear(self, message: ToAgent) -> None:
        self.told.append(message)
        self._news.set()
        if isinstance(message, Announce):
            self.announced = message.generation
            if any(place.worker == self.worker and place.rank >= 0 for place in message.places):
                self.phase = "member"
                self.client.send(Formed(self.worker, message.generation, 5))
        elif isinstance(message, Release):
            self.formed = message.generation
        elif isinstance(message, Evicted):
            self.phase = "ready"
            self.client.send(Ready(self.worker, self.formed))

    def become_ready(self) -> None:
        self.phase = "ready"
        self.client.send(Started(self.worker, 0))
        self.client.send(Registered(self.worker))
        self.client.send(Ready(self.worker))

    async def hears(self, kind: type[M], condition: Callable[[M], object] = lambda message: True) -> M:
        while True:
            for message in self.told:
                if isinstance(message, kind) and condition(message):
                    return message
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 15)

    def count(self, kind: type[ToAgent]) -> int:
        return sum(isinstance(message, kind) for message in self.told)

    async def leave(self) -> None:
        await self.client.close()
        await asyncio.gather(self._task, return_exceptions=True)


NewAgent = Callable[[str, str], AbstractAsyncContextManager[Agent]]


@pytest.fixture
def new_agent() -> NewAgent:
    @asynccontextmanager
    async def new_agent(url: str, name: str) -> AsyncIterator[Agent]:
        agent = Agent(url, name)
        try:
            yield agent
        finally:
            await agent.leave()

    return new_agent


async def run_together(*agents: Agent) -> int:
    """Returns the generation that all of them are released into."""
    for agent in agents:
        agent.become_ready()
    announced = await agents[0].hears(Announce, lambda message: message.world_size == len(agents))
    for agent in agents:
        await agent.hears(Release, lambda message: message.generation == announced.generation)
    return announced.generation


def test_a_job_forms_survives_a_loss_and_ends(run: Run, new_agent: NewAgent) -> None:
    async def scenario() -> None:
        server = await Server.start(timing=Timing(suspicion=0.3))
        try:
            async with new_agent(server.url, "a") as a, new_agent(server.url, "b") as b:
                first = await run_together(a, b)
                await b.leave()
                began = time.monotonic()
                alone = await a.hears(Announce, lambda message: message.generation > first)
                assert (alone.abort, alone.world_size, alone.formed) == (True, 1, first)
                assert time.monotonic() - began < 2
                await a.hears(Release, lambda message: message.generation == alone.generation)
                a.phase = "finished"
                a.client.send(Finished(a.worker))
                await a.hears(Done)
            async with new_agent(server.url, "late") as late:
                await late.hears(Done)
        finally:
            await server.stop()

    run(scenario())


def test_a_lost_connection_that_comes_back_costs_nothing(run: Run, new_agent: NewAgent) -> None:
    async def scenario() -> None:
        server = await Server.start(timing=Timing(suspicion=3.0))
        try:
            async with new_agent(server.url, "a") as a, new_agent(server.url, "b") as b:
                await run_together(a, b)
                for connection in [*server._uvicorn.server_state.connections]:
                    connection.transport.abort()
                while not (a.client.connected and b.client.connected):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.5)
                assert (a.count(Announce), b.count(Announce)) == (1, 1)
        finally:
            await server.stop()

    run(scenario())


def test_a_new_server_at_the_same_address_takes_up_a_running_job(run: Run, new_agent: NewAgent) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        server = await Server.start(store=store)
        try:
            async with new_agent(server.url, "a") as a, new_agent(server.url, "b") as b:
                generation = await run_together(a, b)
                await server.stop()
                server = await Server.start(port=int(server.url.rsplit(":", 1)[1]), store=store)
                async with new_agent(server.url, "c") as c:
                    while not (a.client.connected and b.client.connected):
                        await asyncio.sleep(0.01)
                    c.become_ready()
                    joined = await c.hears(Announce)
                    assert (joined.world_size, joined.abort, joined.formed) == (3, False, generation)
                    for agent in (a, b, c):
                        await agent.hears(Release, lambda message: message.generation == joined.generation)
        finally:
            await server.stop()

    run(scenario())


def test_a_server_process_that_was_stopped_for_longer_than_the_lease_loses_nobody(
    run: Run, new_agent: NewAgent
) -> None:
    async def scenario() -> None:
        command = [sys.executable, "-m", "elastic_launch.rendezvous.main", "--host", "127.0.0.1", "--port", "0"]
        process = subprocess.Popen([*command, "--lease", "1"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = (await asyncio.to_thread(process.stdout.readline)).split()[2]
            async with new_agent(url, "a") as a, new_agent(url, "b") as b:
                await run_together(a, b)
                for _ in range(2):
                    process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(2.5)
                    process.send_signal(signal.SIGCONT)
                    await asyncio.sleep(1.5)
                assert (a.count(Announce), b.count(Announce)) == (1, 1)
                assert a.count(Failed) == 0
                assert a.client.connected and b.client.connected
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    run(scenario())


def test_an_agent_that_goes_silent_is_lost_when_its_lease_is_over(run: Run, new_agent: NewAgent) -> None:
    async def scenario() -> None:
        server = await Server.start(timing=Timing(lease=0.6))
        try:
            async with new_agent(server.url, "a") as a, new_agent(server.url, "b") as b:
                first = await run_together(a, b)
                b.client.is_mute = True
                began = time.monotonic()
                alone = await a.hears(Announce, lambda message: message.generation > first)
                assert alone.world_size == 1
                assert 0.3 < time.monotonic() - began < 3
        finally:
            await server.stop()

    run(scenario())
