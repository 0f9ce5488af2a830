"""A real server with a real membership machine, agents with one worker each, and a plain HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from elastic_launch.rendezvous.http.face import Face
from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.server import Server

from ..agents import Agent, run_together
from ..conftest import Until


@dataclass
class Running:
    """The job "digits" on a server: `agents` are named a, b, and so on, as are their hosts ("host of a")."""

    server: Server
    agents: list[Agent]
    http: httpx.AsyncClient

    async def job(self) -> dict[str, object]:
        answer = await self.http.get("/v1/jobs/digits")
        assert answer.status_code == 200
        shown: dict[str, object] = answer.json()
        return shown


RunJob = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def run_job(until: Until) -> RunJob:
    """A job of so many agents that has formed (with none: a server without a job)."""

    @asynccontextmanager
    async def run_job(count: int = 2, face: Face = Face(), timing: Timing | None = None) -> AsyncIterator[Running]:
        server = await Server.start(timing=timing, face=face)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(server.stop)
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, trust_env=False))
            agents = []
            for name in "abcdefgh"[:count]:
                agents.append(Agent(server.url, name))
                stack.push_async_callback(agents[-1].leave)
                await until(lambda: agents[-1].client.connected)  # who comes first has rank 0
            if agents:
                await run_together(*agents)
            yield Running(server, agents, http)

    return run_job
