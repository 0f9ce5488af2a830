"""Whatever is said to the server, it answers in order, and a healthy job on it goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.messages import Failed, Hello, JobSpec, Refused, Welcome, decode_to_agent, encode
from elastic_launch.rendezvous.server import Server

from ..agents import Agent, run_together
from ..conftest import LIMIT, Run

SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[*HealthCheck],
)


@asynccontextmanager
async def healthy_job(caplog: pytest.LogCaptureFixture) -> AsyncIterator[str]:
    """A server's URL, with a job "healthy" on it that must be in order at the end, and able to take somebody in."""
    server = await Server.start(timing=Timing(suspicion=0.2))
    agents = [Agent(server.url, name, "healthy") for name in ("healthy-a", "healthy-b")]
    late = Agent(server.url, "healthy-late", "healthy")
    try:
        await run_together(*agents)
        yield server.url
        late.become_ready()
        everybody = {agent.worker for agent in (*agents, late)}
        limit = time.monotonic() + LIMIT
        while True:
            shown = server._app.state.jobs.get("healthy").snapshot()
            members = {worker["worker"] for worker in shown["workers"] if worker["rank"] >= 0}
            if members == everybody and shown["state"] == "running":
                break
            assert time.monotonic() < limit, shown
            await asyncio.sleep(0.05)
        assert not any(agent.count(Failed) + agent.count(Refused) for agent in (*agents, late))
        for event in server._app.state.jobs.get("healthy").history:
            gone = event["kind"] in ("lost", "left", "crash", "leaving") and event.get("worker") in everybody
            assert not gone and event["kind"] != "resized", event
        bad = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
        assert not bad, "\n".join(record.getMessage() for record in bad)
    finally:
        for agent in (*agents, late):
            await agent.leave()
        await server.stop()


# --- HTTP ------------------------------------------------------------------------------------------------------------

CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
)


def test_every_address_keeps_its_description(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    answered: set[int] = set()

    def try_all(url: str, of_the_job: bool) -> None:
        """With anything that comes to mind; or with what is valid, for the job that there is."""
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        modes = [GenerationMode.POSITIVE] if of_the_job else [*GenerationMode]
        for result in schema.get_all_operations():
            operation = result.ok()

            @settings(SETTINGS, max_examples=25)
            @given(case=st.sampled_from(modes).flatmap(lambda mode: operation.as_strategy(generation_mode=mode)))
            def try_one(case: Any) -> None:
                if case.query and case.query.get("follow"):
                    case.query["follow"] = False  # an answer without an end
                if of_the_job and case.path_parameters:
                    case.path_parameters["job"] = "digits"
                answered.add(case.call_and_validate(base_url=url, checks=CHECKS, timeout=LIMIT).status_code)

            try_one()

    async def scenario() -> None:
        async with healthy_job(caplog) as url:
            sacrifice = Agent(url, "sacrifice")
            await run_together(sacrifice)
            await asyncio.to_thread(try_all, url, of_the_job=True)
            await asyncio.to_thread(try_all, url, of_the_job=False)
            await sacrifice.leave()
            assert answered >= {200, 202, 404, 409, 422}, answered

    run(scenario())


# --- WebSockets ------------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**400, -(10**30), 0.5, 1e308, -0.0])
TEXTS = st.sampled_from(
    ["", "w", "healthy-a", "worker of healthy-a", "\x00", "a\nb", "\u202e", "x" * 3000, "é" * 300, "1.1"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
FIELDS = {
    "started": ("worker", "local_rank"),
    "registered": ("worker",),
    "ready": ("worker", "lineage", "checkpoint"),
    "formed": ("worker", "generation", "step"),
    "broken": ("worker", "generation", "reason", "awaited"),
    "stalled": ("worker", "generation", "waited"),
    "finished": ("worker",),
    "leaving": ("worker",),
    "dying": ("worker", "code"),
    "exited": ("worker", "code", "kind", "step", "reason", "tail", "local_rank"),
    "stop": ("code", "reason"),
    "beat": ("progress",),
    "hello": ("agent", "host", "meeting", "spec", "workers", "announced"),
    "welcome": ("lease",),
}
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "worker": st.sampled_from(["w", "v", "worker of healthy-a", "worker of healthy-b"]),
    "agent": st.sampled_from(["hostile", "other"]),
    "host": st.just("h"),
    "meeting": st.just("127.0.0.1:1"),
    "reason": TEXTS,
    "tail": TEXTS,
    "kind": st.sampled_from(["crash", "rejected", "left", "stale", "done", "?"]),
    "awaited": st.lists(st.integers(-1, 70_000), max_size=5),
    "code": st.integers(0, 255),
    "progress": st.lists(
        st.tuples(st.sampled_from(["w", "worker of healthy-a"]), st.integers(0, 2**53), st.floats(0, 1e300))
    ),
    "spec": st.none() | st.fixed_dictionaries({"min": st.integers(-1, 3), "max": st.integers(-1, 3)}),
    "workers": st.lists(
        st.fixed_dictionaries(
            {
                "worker": st.sampled_from(["w", "v", "worker of healthy-a"]),
                "local_rank": st.integers(-1, 2000),
                "phase": st.sampled_from(["preparing", "ready", "member", "finished", "?"]),
                "lineage": st.integers(0, 2),
                "formed": st.integers(0, 2),
                "broken": st.integers(0, 2),
                "leaving": st.booleans(),
            }
        ),
        max_size=3,
    ),
}


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """A message of ours, now and then with a hostile value, or with a field too few or too many."""
    kind = draw(st.sampled_from(sorted(FIELDS)))
    message: dict[str, Any] = {"type": kind}
    for field in FIELDS[kind]:
        fate = draw(st.integers(0, 39))
        if fate != 1:
            message[field] = draw(ANYTHING if fate == 2 else LIKELY.get(field, st.integers(0, 3)))
    if draw(st.integers(0, 19)) == 1:
        message[draw(TEXTS)] = draw(ANYTHING)
    return message


NONSENSE = ANYTHING.map(json.dumps) | st.sampled_from(
    [
        "",
        "null",
        "NaN",
        '{"type":"stalled","worker":"w","generation":1,"waited":NaN}',
        '{"type":"stalled","worker":"w","generation":1,"waited":1e999}',
        '{"type":"beat","more":' + "[" * 50_000,
        '{"type":"beat","progress":' + "[" * 50_000,
        '{"type":"leaving","worker":"\\ud800"}',
        '{"type":"beat","type":"stop","code":1}',
        b"",
        b"\xff\x00",
        encode(Hello("hostile", "h", "m:1")),
    ]
)
FRAMES = st.tuples(st.lists(messages(), max_size=10), st.lists(NONSENSE, max_size=1))


def is_within_its_rights(message: dict[str, Any]) -> bool:
    """An agent that is let in may end the job, and say of its own workers that they crash, which ends it too."""
    about = str(message.get("worker"))
    return message["type"] == "stop" or (message["type"] in ("exited", "dying") and "healthy" not in about)


async def talk(url: str, job: str, frames: list[str | bytes], greets: bool) -> None:
    """The server answers or closes in order: with a reason, and not by a fault of its own."""
    address = f"{url.replace('http', 'ws')}/v1/jobs/{job}/agent"
    async with connect(address, proxy=None, close_timeout=0.2, ping_interval=None) as connection:
        try:
            if greets:
                spec = JobSpec(1, 3) if job == "healthy" else JobSpec(1, 2)
                await connection.send(encode(Hello("hostile", "h", "127.0.0.1:1", spec)), text=True)
                assert isinstance(decode_to_agent(await asyncio.wait_for(connection.recv(), LIMIT)), Welcome)
            for frame in frames:
                await connection.send(frame)
            pong = await connection.ping()
            await asyncio.wait_for(pong, LIMIT)
        except ConnectionClosed as closed:
            assert closed.rcvd is not None, "the connection broke"
            assert closed.rcvd.code in (1001, 1007, 1008, 1009), closed.rcvd
            assert "internal error" not in closed.rcvd.reason


def test_whatever_agents_say_harms_nobody_else(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def try_all(hand_in: Callable[[Awaitable[None]], None], url: str) -> None:
        @settings(SETTINGS, max_examples=300)
        @given(frames=FRAMES, greets=st.booleans(), job=st.sampled_from(["healthy", "other", "third"]))
        def try_one(frames: tuple[list[dict[str, Any]], list[str | bytes]], greets: bool, job: str) -> None:
            said = [message for message in frames[0] if job != "healthy" or not is_within_its_rights(message)]
            hand_in(talk(url, job, [*map(json.dumps, said), *frames[1]], greets))

        try_one()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def hand_in(work: Awaitable[None]) -> None:
            asyncio.run_coroutine_threadsafe(work, loop).result(30)  # type: ignore[arg-type]

        async with healthy_job(caplog) as url:
            await asyncio.to_thread(try_all, hand_in, url)

    run(scenario())
