"""Server, machine and clients together: agents without real workers, over real sockets and a real server process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.messages import (
    Announce,
    Done,
    Failed,
    Finished,
    Release,
)
from elastic_launch.rendezvous.server import Server
from elastic_launch.rendezvous.stores.memory import MemoryStore

from . import agents
from .agents import NewAgent, run_together
from .conftest import Run


@pytest.fixture
def new_agent() -> NewAgent:
    return agents.new_agent


def test_a_job_forms_survives_a_loss_and_ends(run: Run, new_agent: NewAgent) -> None:
    async def scenario() -> None:
        server = await Server.start(timing=Timing(suspicion=0.3, lease=60))
        try:
            async with new_agent(server.url, "a") as a, new_agent(server.url, "b") as b:
                first = await run_together(a, b)
                await b.leave()
                began = time.monotonic()
                alone = await a.hears(Announce, lambda message: message.generation > first)
                assert (alone.abort, alone.world_size, alone.formed) == (True, 1, first)
                assert time.monotonic() - began < 10
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
