"""A real server on real sockets, around a membership machine that a test scripts."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from elastic_launch.rendezvous.http.face import Face
from elastic_launch.rendezvous.membership.effects import Effect, Tell
from elastic_launch.rendezvous.membership.facts import Facts
from elastic_launch.rendezvous.membership.machine import Membership
from elastic_launch.rendezvous.membership.members import FormedGeneration, Timing
from elastic_launch.rendezvous.messages import (
    Hello,
    JobSpec,
    ToAgent,
    ToServer,
    Welcome,
    decode_to_agent,
    encode,
)
from elastic_launch.rendezvous.server import Server
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.memory import MemoryStore
from elastic_launch.rendezvous.stores.store import Store

from .etcds import Etcd, running_etcd

LIMIT = 20.0  # seconds for anything that should take milliseconds


class ScriptedMembership(Membership):
    """Remembers what happened, welcomes every agent, and otherwise does what the test puts into `on_message`."""

    def __init__(
        self,
        spec: JobSpec,
        timing: Timing,
        formed: FormedGeneration | None = None,
        done: bool = False,
        facts: Facts | None = None,
        term: int = 0,
    ) -> None:
        self.kept = facts or Facts(spec, spec.min, spec.max)
        self.spec, self.timing, self.formed, self.was_done = spec, timing, formed, done
        self.happened: list[tuple[Any, ...]] = []
        self.on_message: Callable[[str, ToServer, float], list[Effect]] = lambda agent, message, now: []
        self.decisions = 0
        self.on_decision: Callable[[], list[Effect]] = lambda: []
        self.deadline: float | None = None
        self.effects_of_a_tick: list[Effect] = []

    def said(self, agent: str, message: ToServer, now: float) -> list[Effect]:
        self.happened.append(("said", agent, message))
        welcome: list[Effect] = [Tell(agent, Welcome(self.timing.lease))] if isinstance(message, Hello) else []
        return welcome + self.on_message(agent, message, now)

    def decide(self, now: float) -> list[Effect]:
        self.decisions += 1
        return self.on_decision()

    def closed(self, agent: str, now: float) -> list[Effect]:
        self.happened.append(("closed", agent))
        return []

    def drain(self, worker: str, now: float) -> list[Effect]:
        if worker != "known":
            raise KeyError(worker)
        self.happened.append(("drain", worker))
        return []

    def persisted(self, generation: int, now: float) -> list[Effect]:
        self.happened.append(("persisted", generation))
        return []

    def persist_refused(self, generation: int, actual: FormedGeneration | None, now: float) -> list[Effect]:
        self.happened.append(("persist_refused", generation, actual))
        return []

    def persisted_done(self, now: float) -> list[Effect]:
        self.happened.append(("persisted_done",))
        return []

    def tick(self, now: float) -> list[Effect]:
        self.happened.append(("tick",))
        self.deadline = None
        return self.effects_of_a_tick

    @property
    def facts(self) -> Facts:
        return self.kept

    def next_deadline(self) -> float | None:
        return self.deadline

    @property
    def over(self) -> bool:
        return self.was_done

    @property
    def state(self) -> str:
        return "done" if self.was_done else "running"

    def snapshot(self) -> dict[str, Any]:
        return {"state": self.state, "generation": len(self.happened)}

    def messages(self, agent: str) -> list[ToServer]:
        return [event[2] for event in self.happened if event[:2] == ("said", agent)]


class Served:
    """A server, and the machines that it has made: `machines[job]` is made before the job's first agent is welcomed."""

    def __init__(self, server: Server, machines: list[ScriptedMembership]) -> None:
        self.server, self.url, self._machines = server, server.url, machines

    @property
    def machine(self) -> ScriptedMembership:
        """The newest."""
        return self._machines[-1]

    @property
    def made(self) -> int:
        return len(self._machines)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


class Agent:
    """The bare WebSocket of an agent."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, message: ToServer) -> None:
        await self.connection.send(encode(message), text=True)

    async def heard(self) -> ToAgent:
        message: ToAgent = decode_to_agent(await asyncio.wait_for(self.connection.recv(), LIMIT))
        return message

    async def hears(self, kind: type[ToAgent]) -> ToAgent:
        """The next message of that kind; others are passed over."""
        while not isinstance(message := await self.heard(), kind):
            pass
        return message


Dial = Callable[..., AbstractAsyncContextManager[Agent]]
Until = Callable[[Callable[[], object]], Awaitable[None]]
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run() -> Run:
    """Runs a test's coroutine under a limit."""

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(scenario, 60))

    return run


@pytest.fixture
def until() -> Until:
    """Waits until a condition holds."""

    async def until(condition: Callable[[], object]) -> None:
        limit = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < limit, "the condition did not come true"
            await asyncio.sleep(0.002)

    return until


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def serve(
        host: str = "127.0.0.1",
        port: int = 0,
        store: Store | None = None,
        timing: Timing | None = None,
        face: Face = Face(),
    ) -> AsyncIterator[Served]:
        machines: list[ScriptedMembership] = []

        def new_membership(*arguments: Any, **options: Any) -> Membership:
            machines.append(ScriptedMembership(*arguments, **options))
            return machines[-1]

        server = await Server.start(host, port, store, timing, new_membership, face=face)
        try:
            yield Served(server, machines)
        finally:
            await server.stop()

    return serve


@pytest.fixture
def dial() -> Dial:
    """A bare connection to a job; with an agent's name, it has said Hello and was welcomed."""

    @asynccontextmanager
    async def dial(url: str, job: str = "digits", agent: str = "", spec: JobSpec | None = None) -> AsyncIterator[Agent]:
        address = f"{url.replace('http', 'ws', 1)}/v1/jobs/{job}/agent"
        async with connect(address, compression=None, proxy=None, close_timeout=0.2, ping_interval=None) as connection:
            talking = Agent(connection)
            if agent:
                await talking.say(Hello(agent, "host", "127.0.0.1:1", spec or JobSpec(1, 2)))
                assert isinstance(await talking.heard(), Welcome)
            yield talking

    return dial


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that stays reserved and refuses connections."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


MakeStore = Callable[[], Store]
WithStore = Callable[[Callable[[Store], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="session")
def etcd_of_version() -> Iterator[Callable[[str], Etcd]]:
    """One etcd of each version that is asked for, for all tests that leave it as it is."""
    with ExitStack() as stack:
        yield functools.cache(lambda version: stack.enter_context(running_etcd(version)))


@pytest.fixture(scope="session")
def _etcd_to_break() -> Iterator[Etcd]:
    with running_etcd("3.4") as etcd:
        yield etcd


@pytest.fixture
def etcd(_etcd_to_break: Etcd) -> Iterator[Etcd]:
    """For one fault after another. Not 3.5.1: when killed, it can damage its data."""
    yield _etcd_to_break
    _etcd_to_break.mend()


@pytest.fixture(params=["memory", "etcd 3.4", "etcd 3.5"])
def make_store(request: pytest.FixtureRequest, etcd_of_version: Callable[[str], Etcd]) -> MakeStore:
    """Makes stores that share their content, which is empty at first: one for each server of a job."""
    if request.param == "memory":
        shared = MemoryStore()
        return lambda: shared
    address = replace(etcd_of_version(request.param.removeprefix("etcd ")).address, prefix=f"/{uuid.uuid4().hex}/")
    return lambda: EtcdStore(address)


@pytest.fixture
def with_store(make_store: MakeStore) -> WithStore:
    """Runs a scenario on an empty store."""

    def run(scenario: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
        async def bracket() -> None:
            store = make_store()
            try:
                await asyncio.wait_for(scenario(store), 30)
            finally:
                await store.close()
                await store.close()

        asyncio.run(bracket())

    return run
