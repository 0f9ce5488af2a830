"""The history of a job, and readers that follow it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from elastic_launch.rendezvous.history import History
from elastic_launch.rendezvous.http import events
from elastic_launch.rendezvous.http.face import Face
from elastic_launch.rendezvous.http.limits import Limits
from elastic_launch.rendezvous.job import HISTORY
from elastic_launch.rendezvous.membership.effects import Event

from ..conftest import LIMIT, Run, Until
from .conftest import RunJob, Running

PATH = "/v1/jobs/digits/events"


def happen(running: Running, text: str, size: int = 0) -> None:
    running.server._app.state.jobs.get("digits").history.add(Event("tick", text, {"more": "x" * size}))


async def blocks(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """The blocks of a stream of server-sent events; comments as "comment"."""
    block: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if not line and block:
            yield block
            block = {}
        elif line:
            name, _, value = line.partition(": ")
            block[name or "comment"] = value


async def followed(answer: httpx.Response, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The next `count` events with their ids."""
    found: list[tuple[str, dict[str, Any]]] = []
    async for block in blocks(answer):
        if "data" in block:
            event = json.loads(block["data"])
            assert (event["id"], event["kind"]) == (block["id"], block["event"])
            found.append((block["id"], event))
        if len(found) == count:
            break
    return found


def test_the_history_is_shown_with_causes(run: Run, run_job: RunJob) -> None:
    async def scenario() -> None:
        async with run_job(2) as running:
            shown = (await running.http.get(PATH)).json()["events"]
            announced = next(event for event in shown if event["kind"] == "announced")
            assert (announced["cause"], announced["generation"]) == ("start", 1)
            assert len({event["id"] for event in shown}) == len(shown)
            after = (await running.http.get(PATH, params={"after": shown[2]["id"]})).json()["events"]
            assert after == shown[3:]
            assert (await running.http.get(PATH, params={"after": "other-1"})).json()["events"] == shown

    run(scenario())


@pytest.mark.parametrize("way", [{"params": {"follow": "true"}}, {"headers": {"Accept": "text/event-stream"}}])
def test_events_are_followed_and_a_reader_that_comes_back_goes_on_where_it_was(
    run: Run, run_job: RunJob, way: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with run_job(1) as running:
            shown = (await running.http.get(PATH)).json()["events"]
            async with running.http.stream("GET", PATH, **way) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                happen(running, "one")
                happen(running, "two")
                found = await followed(answer, len(shown) + 2)
                assert [event for _, event in found[:-2]] == shown
                assert [event["text"] for _, event in found[-2:]] == ["one", "two"]
            happen(running, "three")
            headers = {**way.get("headers", {}), "Last-Event-ID": found[-2][0]}
            async with running.http.stream("GET", PATH, **{**way, "headers": headers}) as answer:
                assert [event["text"] for _, event in await followed(answer, 2)] == ["two", "three"]
                happen(running, "four")

    run(scenario())


def test_a_silent_stream_is_kept_alive(run: Run, run_job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEPALIVE", 0.05)

    async def scenario() -> None:
        async with run_job(1) as running, running.http.stream("GET", PATH, params={"follow": 1}) as answer:
            kept = 0
            async for block in blocks(answer):
                kept += block.get("comment") == "still here"
                if kept == 3:
                    break

    run(scenario())


def test_streams_end_when_the_server_stops_and_when_the_job_is_forgotten(
    run: Run, run_job: RunJob, until: Until
) -> None:
    async def scenario() -> None:
        for end in ("stop", "remove"):
            async with run_job(1) as running:
                async with running.http.stream("GET", PATH, params={"follow": 1}) as answer:
                    reading = asyncio.ensure_future(_all(answer))
                    jobs = running.server._app.state.jobs
                    began = time.monotonic()
                    await (running.server.stop() if end == "stop" else jobs.remove(jobs.get("digits")))
                    text = await reading
                    assert text.endswith("\n\n") and "announced" in text
                    assert time.monotonic() - began < 10

    run(scenario())


async def _all(answer: httpx.Response) -> str:
    return "".join([part async for part in answer.aiter_text()])


def test_a_reader_that_does_not_read_costs_nobody_anything(run: Run, run_job: RunJob, until: Until) -> None:
    async def scenario() -> None:
        async with run_job(2) as running:
            host, port = running.server.url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as stuck:
                stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                stuck.sendall(f"GET {PATH}?follow=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                await asyncio.sleep(0.1)
                async with running.http.stream("GET", PATH, params={"follow": 1}) as answer:
                    reading = asyncio.ensure_future(_until_last(answer))
                    for number in range(3 * HISTORY):
                        happen(running, str(number), size=2000)
                        if number % 50 == 0:
                            began = time.monotonic()
                            await running.job()
                            assert time.monotonic() - began < 10
                    happen(running, "last")
                    await asyncio.wait_for(reading, LIMIT)
            streams = running.http
            await until(lambda: _streams(running) == 0)
            assert (await streams.get("/healthz")).status_code == 200

    run(scenario())


async def _until_last(answer: httpx.Response) -> None:
    async for block in blocks(answer):
        if "data" in block and json.loads(block["data"])["text"] == "last":
            return


def _streams(running: Running) -> int:
    count: int = running.server._app.state.streams.count
    return count


def test_only_so_many_readers_follow(run: Run, run_job: RunJob, until: Until) -> None:
    async def scenario() -> None:
        async with run_job(1, Face(Limits(streams=1))) as running:
            async with running.http.stream("GET", PATH, params={"follow": 1}):
                await until(lambda: _streams(running) == 1)
                answer = await running.http.get(PATH, params={"follow": 1})
                assert answer.status_code == 503 and "1 readers" in answer.json()["detail"]
            await until(lambda: _streams(running) == 0)
            async with running.http.stream("GET", PATH, params={"follow": 1}) as again:
                assert again.status_code == 200

    run(scenario())


def test_a_history_keeps_the_newest_and_knows_its_own_ids() -> None:
    history = History(3)
    for number in range(5):
        history.add(Event("tick", str(number)))
    ids = [event["id"] for event in history]
    assert [event["text"] for event in history] == ["2", "3", "4"]
    word = ids[0].rpartition("-")[0]
    assert [event["text"] for event in history.after(ids[0])] == ["3", "4"]
    assert history.after(ids[-1]) == []
    for unknown in ("", "x", f"{word}-1", f"{word}-99", f"{word}--1", f"{word}-{'9' * 30}", "other-4", f"{word}-²"):
        assert len(history.after(unknown)) == 3, unknown
