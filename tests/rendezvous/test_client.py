"""The agent's connection against a real server that comes, goes and refuses."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from elastic_launch.errors import RendezvousError, UsageError
from elastic_launch.rendezvous import client as client_module
from elastic_launch.rendezvous.client import Client, agent_url
from elastic_launch.rendezvous.membership.effects import Tell
from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.messages import (
    Beat,
    Done,
    Failed,
    Formed,
    Hello,
    JobSpec,
    Leaving,
    Ready,
    Refused,
    ToAgent,
    ToServer,
    Welcome,
)

from .conftest import LIMIT, Run, Serve, Until


class Running:
    """A client in a task of its own, and all that it was told."""

    def __init__(self, *urls: str, job: str = "digits", spec: JobSpec | None = None, connect_timeout: float = LIMIT):
        self.told: list[ToAgent] = []
        self.hellos = 0
        self._spec = spec or JobSpec(1, 2)
        self.client = Client(urls, job, self._hello, self.told.append, connect_timeout)
        self.task = asyncio.ensure_future(self.client.run())

    def _hello(self) -> Hello:
        self.hellos += 1
        return Hello("a", "host", "127.0.0.1:1", self._spec, announced=self.hellos)


Connect = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def connecting() -> Connect:
    @asynccontextmanager
    async def connecting(*urls: str, job: str = "digits", connect_timeout: float = LIMIT) -> AsyncIterator[Running]:
        running = Running(*urls, job=job, connect_timeout=connect_timeout)
        try:
            yield running
        finally:
            await running.client.close()
            await asyncio.wait_for(asyncio.gather(running.task, return_exceptions=True), LIMIT)

    return connecting


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("place", ["reach", "_read_until_welcome"])
def test_closing_at_the_moment_in_which_a_connection_comes_ends_it(
    run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch, place: str, turns: int
) -> None:
    async def scenario() -> None:
        async with serve() as served:
            agent = Running(served.url)
            owner: object = client_module if place == "reach" else agent.client
            come = getattr(owner, place)

            async def come_and_close(*arguments: object) -> object:
                found = await come(*arguments)
                agent.client._closing.set()
                for _ in range(turns):
                    await asyncio.sleep(0)
                return found

            monkeypatch.setattr(owner, place, come_and_close)
            done, _ = await asyncio.wait([agent.task], timeout=LIMIT)
            assert done

    run(scenario())


def test_messages_go_both_ways_in_order(run: Run, serve: Serve, connecting: Connect, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served, connecting(served.url) as agent:
            await until(lambda: agent.client.connected)
            assert agent.client.disconnected_since is None
            assert agent.told == [Welcome(served.machine.timing.lease)]
            served.machine.on_message = lambda who, message, now: (
                [Tell("a", Failed(message.generation))] if isinstance(message, Formed) else []
            )
            sent: list[ToServer] = [Formed("w", generation) for generation in range(100)]
            for message in sent:
                agent.client.send(message)
            await until(lambda: len(agent.told) == 101)
            assert served.machine.messages("a")[1:] == sent
            assert agent.told[1:] == [Failed(code) for code in range(100)]

    run(scenario())


def test_what_is_sent_before_the_server_is_there_arrives_after_the_hello(
    run: Run, serve: Serve, connecting: Connect, until: Until, free_port: int
) -> None:
    async def scenario() -> None:
        async with connecting(f"http://127.0.0.1:{free_port}") as agent:
            agent.client.send(Ready("w"))
            agent.client.send(Beat())
            agent.client.send(Leaving("w"))
            await until(lambda: "refused" in agent.client._last_error.lower())
            assert not agent.client.connected
            assert agent.client.disconnected_since is not None

    async def late_server() -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
        async with connecting(f"http://127.0.0.1:{port}") as agent:
            agent.client.send(Ready("w"))
            agent.client.send(Beat())
            agent.client.send(Leaving("w"))
            await until(lambda: agent.client._last_error != "no attempt was made")
            async with serve(port=port) as served:
                await until(lambda: served.made and len(served.machine.messages("a")) >= 3)
                assert served.machine.messages("a")[1:] == [Ready("w"), Leaving("w")]

    run(scenario())
    run(late_server())


def test_the_agent_beats_three_times_in_a_lease(run: Run, serve: Serve, connecting: Connect, until: Until) -> None:
    async def scenario() -> None:
        async with serve(timing=Timing(lease=0.3)) as served, connecting(served.url) as agent:
            await until(lambda: agent.client.connected)
            heard = agent.client.last_heard
            began = time.monotonic()
            await until(lambda: served.machine.messages("a").count(Beat()) >= 4)
            assert 0.3 < time.monotonic() - began < 10
            await until(lambda: agent.client.last_heard != heard)

    run(scenario())


def test_a_lost_connection_is_made_again_with_a_fresh_hello(
    run: Run, serve: Serve, connecting: Connect, until: Until
) -> None:
    async def scenario() -> None:
        async with serve() as served:
            url = served.url
            async with connecting(url) as agent:
                await until(lambda: agent.client.connected)
                await served.server.stop()
                await until(lambda: not agent.client.connected)
                assert agent.client.disconnected_since is not None
                agent.client.send(Ready("w", 3))
                await asyncio.sleep(0.2)
                async with serve(port=int(url.rsplit(":", 1)[1])) as again:
                    await until(lambda: again.made and len(again.machine.messages("a")) == 2)
                    hello, ready = again.machine.messages("a")
                    assert isinstance(hello, Hello) and hello.announced == agent.hellos > 1
                    assert ready == Ready("w", 3)
                    assert agent.client.connected

    run(scenario())


def test_the_next_replica_is_tried_when_one_does_not_answer(
    run: Run, serve: Serve, connecting: Connect, until: Until, free_port: int
) -> None:
    async def scenario() -> None:
        async with serve() as served, connecting(f"http://127.0.0.1:{free_port}", served.url) as agent:
            await until(lambda: agent.client.connected)

    run(scenario())


def test_an_address_that_swallows_everything_costs_two_seconds(
    run: Run, serve: Serve, connecting: Connect, until: Until
) -> None:
    async def scenario() -> None:
        with (
            socket.create_server(("127.0.0.1", 0), backlog=0) as full,
            socket.socket() as first,
            socket.socket() as second,
        ):
            for filling in (first, second):
                filling.setblocking(False)
                filling.connect_ex(full.getsockname())
            began = time.monotonic()
            async with serve() as served:
                hole = f"http://127.0.0.1:{full.getsockname()[1]}"
                async with connecting(hole, served.url) as agent:
                    await until(lambda: agent.client.connected)
                    assert 1.5 < time.monotonic() - began < 8

    run(scenario())


@pytest.mark.parametrize("final", [Done(), Failed(3, "because"), Refused("no")])
def test_run_ends_after_the_servers_last_word(run: Run, serve: Serve, until: Until, final: ToAgent) -> None:
    async def scenario() -> None:
        async with serve() as served:
            agent = Running(served.url)
            await until(lambda: agent.client.connected)
            served.machine.on_message = lambda who, message, now: [Tell("a", final)]
            agent.client.send(Ready("w"))
            await until(lambda: agent.told[-1] == final)
            agent.client.send(Leaving("w"))
            await until(lambda: Leaving("w") in served.machine.messages("a"))
            await served.server.stop()
            await asyncio.wait_for(agent.task, LIMIT)
            assert agent.hellos == 1

    run(scenario())


def test_a_refusal_reaches_the_agent_and_is_not_tried_again(run: Run, serve: Serve) -> None:
    async def scenario() -> None:
        async with serve() as served:
            agent = Running(served.url, spec=JobSpec(5, 2))
            await asyncio.wait_for(agent.task, LIMIT)
            (refused,) = agent.told
            assert isinstance(refused, Refused) and "min=5 max=2" in refused.reason
            assert agent.hellos == 1

    run(scenario())


def test_a_server_that_is_never_reached_is_an_error_that_says_what_to_do(run: Run, free_port: int) -> None:
    async def scenario() -> None:
        began = time.monotonic()
        agent = Running(f"http://127.0.0.1:{free_port}", connect_timeout=0.5)
        with pytest.raises(
            RendezvousError, match=f"http://127.0.0.1:{free_port} within 0.5 s.*Check that elastic-rendez"
        ):
            await asyncio.wait_for(agent.task, LIMIT)
        assert 0.5 <= time.monotonic() - began < 10

    run(scenario())


def test_a_port_that_accepts_and_says_nothing_is_given_up(run: Run) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            agent = Running(f"http://127.0.0.1:{mute.getsockname()[1]}", connect_timeout=0.5)
            with pytest.raises(RendezvousError, match="last error: TimeoutError: timed out"):
                await asyncio.wait_for(agent.task, LIMIT)

    run(scenario())


def test_a_server_that_is_something_else_is_named_in_the_error(run: Run) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            agent = Running(f"http://127.0.0.1:{port}", connect_timeout=0.5)
            with pytest.raises(RendezvousError, match="HTTP 404"):
                await asyncio.wait_for(agent.task, LIMIT)

    run(scenario())


def test_close_sends_what_waits_and_ends_run(run: Run, serve: Serve, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served:
            agent = Running(served.url)
            await until(lambda: agent.client.connected)
            for generation in range(100):
                agent.client.send(Formed("w", generation))
            await agent.client.close()
            await asyncio.wait_for(agent.task, LIMIT)
            await until(lambda: ("closed", "a") in served.machine.happened)
            assert served.machine.messages("a")[-1] == Formed("w", 99)
            assert not agent.client.connected

    run(scenario())


def test_close_ends_run_while_no_server_is_there(run: Run, free_port: int) -> None:
    async def scenario() -> None:
        agent = Running(f"http://127.0.0.1:{free_port}")
        await asyncio.sleep(0.05)
        await agent.client.close()
        await asyncio.wait_for(agent.task, LIMIT)

    run(scenario())


def test_an_error_of_the_agents_own_handler_is_not_swallowed(run: Run, serve: Serve) -> None:
    async def scenario() -> None:
        async with serve() as served:

            def fail(message: ToAgent) -> None:
                raise ZeroDivisionError

            client = Client([served.url], "digits", lambda: Hello("a", "h", "m", JobSpec(1, 2)), fail)
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(client.run(), LIMIT)

    run(scenario())


def test_back_off_grows_and_is_bounded(run: Run, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            raise asyncio.CancelledError

    async def scenario() -> None:
        agent = Running(f"http://127.0.0.1:{free_port}", connect_timeout=1000)
        with pytest.raises(asyncio.CancelledError):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("asyncio.sleep", note)
                await agent.task

    run(scenario())
    assert pauses[0] < 0.2
    assert max(pauses) <= 1.5 * client_module._LONGEST_PAUSE
    assert min(pauses[-4:]) >= 0.5 * client_module._LONGEST_PAUSE
    assert len(set(pauses)) == len(pauses), "all agents of a job lose the server at once"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:1",
        "http://host",
        "ftp://host:1",
        "http://:1",
        "http://host:99999",
        "http://host:1/x",
        "http://host:1?x",
    ],
)
def test_a_url_that_cannot_be_a_server_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        agent_url(url, "digits")


def test_urls_of_ipv6_and_tls_are_understood() -> None:
    assert agent_url("http://[::1]:29600/", "digits") == "ws://[::1]:29600/v1/jobs/digits/agent"
    assert agent_url("https://host:443", "a.b") == "wss://host:443/v1/jobs/a.b/agent"
    with pytest.raises(UsageError, match="cannot be a job's name"):
        agent_url("http://host:1", "a/b")


def test_the_client_imports_no_server_and_no_framework() -> None:
    code = (
        "import sys, elastic_launch.rendezvous.client\n"
        "print([name for name in ('fastapi', 'starlette', 'uvicorn', 'pydantic', 'torch') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
