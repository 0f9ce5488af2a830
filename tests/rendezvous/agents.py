"""Agents without real workers, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection

from elastic_launch.rendezvous.client import Client
from elastic_launch.rendezvous.messages import (
    Announce,
    Beat,
    Evicted,
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

    def __init__(self, url: str | Sequence[str], name: str, job: str = "digits", **options: Any) -> None:
        self.worker = f"worker of {name}"
        self.told: list[ToAgent] = []
        self.phase, self.formed, self.announced = "preparing", 0, 0
        self._name = name
        self.lease_until = 0.0
        self._news = asyncio.Event()
        self.client = ForgetfulClient(
            [url] if isinstance(url, str) else url, job, self._hello, self._hear, on_lease=self._lease, **options
        )
        self._task = asyncio.ensure_future(self.client.run())

    def _hello(self) -> Hello:
        claim = WorkerClaim(self.worker, 0, self.phase, formed=self.formed, lineage=self.formed)
        return Hello(
            self._name, f"host of {self._name}", "127.0.0.1:1", SPEC, [claim], self.announced, f"pod of {self._name}"
        )

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

    def _lease(self, until: float) -> None:
        self.lease_until = until

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


async def run_together(*agents: Agent) -> int:
    """Returns the generation that all of them are released into."""
    for agent in agents:
        agent.become_ready()
    announced = await agents[0].hears(Announce, lambda message: message.world_size == len(agents))
    for agent in agents:
        await agent.hears(Release, lambda message: message.generation == announced.generation)
    return announced.generation


NewAgent = Callable[[str | Sequence[str], str], AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def new_agent(url: str | Sequence[str], name: str) -> AsyncIterator[Agent]:
    agent = Agent(url, name)
    try:
        yield agent
    finally:
        await agent.leave()
