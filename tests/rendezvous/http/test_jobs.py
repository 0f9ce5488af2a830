"""Jobs over HTTP: shown, and changed while they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.messages import Announce, Beat, Drain, Exited, Failed, Finished, Released

from ..agents import Agent, run_together
from ..conftest import Run, Until
from .conftest import RunJob


def test_a_job_is_shown_with_its_workers_their_steps_and_their_speed(run: Run, run_job: RunJob) -> None:
    async def scenario() -> None:
        async with run_job(2) as running:
            a, b = running.agents
            for step in range(1, 5):
                a.client.send(Beat([(a.worker, step, 64.0 * step), (b.worker, 999, 1.0)]))
                await asyncio.sleep(0.05)
            shown = await running.job()
            assert (shown["state"], shown["world_size"], shown["agents"], shown["standby"]) == ("running", 2, 2, 0)
            workers = {worker["worker"]: worker for worker in shown["workers"]}  # type: ignore[attr-defined]
            first = workers[a.worker]
            assert (first["host"], first["phase"], first["presence"], first["step"]) == (
                "host of a",
                "member",
                "here",
                4,
            )
            assert workers[b.worker]["step"] == 0, "an agent speaks for its own workers"
            assert sorted(worker["rank"] for worker in workers.values()) == [0, 1]
            assert first["steps_per_second"] > 0
            assert first["samples_per_second"] == pytest.approx(64 * first["steps_per_second"], rel=0.01)
            (summary,) = (await running.http.get("/v1/jobs")).json()["jobs"]
            assert (summary["job"], summary["state"], summary["spec"]["max"]) == ("digits", "running", 3)

    run(scenario())


@pytest.mark.parametrize("request_of", ["worker", "host"])
def test_a_worker_or_a_host_is_drained(run: Run, run_job: RunJob, request_of: str) -> None:
    async def scenario() -> None:
        async with run_job(2) as running:
            a, b = running.agents
            body = {"worker": b.worker} if request_of == "worker" else {"host": "host of b"}
            answer = await running.http.post("/v1/jobs/digits/drain", json=body)
            assert (answer.status_code, answer.json()) == (202, {"draining": next(iter(body.values()))})
            await b.hears(Drain)
            await a.hears(Announce, lambda message: message.cause == "drained")
            await b.hears(Released)

    run(scenario())


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"worker": "nobody"}, 404, "job 'digits' has no worker 'nobody'"),
        ({"host": "nowhere"}, 404, "job 'digits' has no host 'nowhere'"),
        ({}, 422, "worker"),
        ({"worker": "w", "host": "h"}, 422, "Extra inputs"),
        ({"worker": 3}, 422, "string"),
        ({"worker": "x" * 1000}, 422, "256"),
        ([], 422, ""),
    ],
)
def test_a_drain_that_cannot_be_says_why(run: Run, run_job: RunJob, body: object, code: int, words: str) -> None:
    async def scenario() -> None:
        async with run_job(1) as running:
            answer = await running.http.post("/v1/jobs/digits/drain", json=body)
            assert answer.status_code == code
            assert words in answer.json()["detail"]

    run(scenario())


@pytest.mark.parametrize("what", ["agent", "pod"])
def test_whoever_is_gone_for_certain_is_not_waited_for(run: Run, run_job: RunJob, what: str) -> None:
    async def scenario() -> None:
        async with run_job(2, timing=Timing(lease=60.0)) as running:
            a, b = running.agents
            shown = {worker["worker"]: worker for worker in (await running.job())["workers"]}  # type: ignore[attr-defined]
            body = {what: shown[b.worker][what], "reason": "evicted"}
            answer = await running.http.post("/v1/jobs/digits/gone", json=body)
            assert (answer.status_code, answer.json()) == (202, {"gone": body[what]})
            announce = await a.hears(Announce, lambda message: message.world_size == 1)
            assert "evicted" in announce.reason
            again = await running.http.post("/v1/jobs/digits/gone", json=body)
            assert again.status_code == 404, "said twice, it changes nothing"

    run(scenario())


@pytest.mark.parametrize(
    ("body", "code"), [({"agent": "x"}, 404), ({"pod": ""}, 422), ({}, 422), ({"worker": "x"}, 422)]
)
def test_who_is_not_known_cannot_be_gone(run: Run, run_job: RunJob, body: object, code: int) -> None:
    async def scenario() -> None:
        async with run_job(1) as running:
            answer = await running.http.post("/v1/jobs/digits/gone", json=body)
            assert answer.status_code == code
            assert (await running.job())["world_size"] == 1

    run(scenario())


def test_min_and_max_change_while_the_job_runs(run: Run, run_job: RunJob) -> None:
    async def scenario() -> None:
        async with run_job(2) as running:
            a, b = running.agents
            answer = await running.http.patch("/v1/jobs/digits", json={"max": 1})
            assert answer.status_code == 200
            assert answer.json()["spec"]["max"] == 1 and answer.json()["spec"]["min"] == 1
            await b.hears(Drain)
            await a.hears(Announce, lambda message: message.world_size == 1 and not message.abort)
            late = Agent(running.server.url, "late")
            try:
                late.become_ready()
                answer = await running.http.patch("/v1/jobs/digits", json={"min": 2, "max": 2})
                assert answer.json()["spec"] == {"min": 2, "max": 2, "max_restarts": 3, "min_timeout": 600.0}
                await late.hears(Announce)
            finally:
                await late.leave()

    run(scenario())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"min": 3, "max": 2}, "1 <= min <= max"),
        ({"min": 4}, "1 <= min <= max, not min=4 max=3"),
        ({"min": 0}, "greater than or equal to 1"),
        ({"max": True}, "integer"),
        ({"max": "2"}, "integer"),
        ({"max": 1e30}, "max"),
        ({}, "give min, max or both"),
        ({"maximum": 3}, "Extra inputs"),
    ],
)
def test_sizes_that_no_job_can_have_are_refused(run: Run, run_job: RunJob, body: object, words: str) -> None:
    async def scenario() -> None:
        async with run_job(1) as running:
            answer = await running.http.patch("/v1/jobs/digits", json=body)
            assert answer.status_code == 422
            assert words in answer.json()["detail"]
            assert (await running.job())["spec"] == {"min": 1, "max": 3, "max_restarts": 3, "min_timeout": 600.0}

    run(scenario())


def test_a_running_job_is_stopped_in_order_and_a_finished_one_removed(run: Run, run_job: RunJob, until: Until) -> None:
    async def scenario() -> None:
        async with run_job(2) as running:
            answer = await running.http.delete("/v1/jobs/digits")
            assert (answer.status_code, answer.json()) == (202, {"job": "digits", "state": "stopping"})
            for agent in running.agents:
                assert (await agent.hears(Released)).worker == agent.worker
                agent.client.send(Finished(agent.worker))
                await agent.client.close()
            await until(lambda: running.server._app.state.jobs.get("digits").ended_at is not None)
            shown = await running.job()
            assert (shown["state"], shown["failure"]) == ("failed", {"code": 130, "reason": "stopped over HTTP"})
            for path, body in (("", {"max": 3}), ("/drain", {"worker": "w"})):
                method = "POST" if path else "PATCH"
                answer = await running.http.request(method, f"/v1/jobs/digits{path}", json=body)
                assert (answer.status_code, answer.json()["detail"][:23]) == (409, "job 'digits' is failed:")
            answer = await running.http.delete("/v1/jobs/digits")
            assert (answer.status_code, answer.json()) == (200, {"job": "digits", "state": "removed"})
            assert (await running.http.get("/v1/jobs/digits")).status_code == 404
            again = Agent(running.server.url, "again")
            try:
                await run_together(again)
            finally:
                await again.leave()

    run(scenario())


def test_a_stop_that_the_agents_hear_ends_with_the_code_of_an_interrupt(run: Run, run_job: RunJob) -> None:
    async def scenario() -> None:
        async with run_job(1) as running:
            (agent,) = running.agents
            await running.http.delete("/v1/jobs/digits")
            await agent.hears(Released)
            agent.client.send(Exited(agent.worker, 0, "left"))
            failed = await agent.hears(Failed)
            assert (failed.code, failed.reason) == (130, "stopped over HTTP")

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs/none"),
        ("GET", "/v1/jobs/none/events"),
        ("PATCH", "/v1/jobs/none"),
        ("DELETE", "/v1/jobs/none"),
        ("POST", "/v1/jobs/none/drain"),
    ],
)
def test_a_job_that_is_not_known_is_404_and_a_name_that_cannot_be_one_422(
    run: Run, run_job: RunJob, method: str, path: str
) -> None:
    async def scenario() -> None:
        async with run_job(0) as running:
            body = {"POST": {"worker": "w"}, "PATCH": {"max": 1}}.get(method)
            answer = await running.http.request(method, path, json=body)
            assert (answer.status_code, answer.json()) == (404, {"detail": "job 'none' is not known here"})
            answer = await running.http.request(method, path.replace("none", "-%20x"), json=body)
            assert answer.status_code == 422 and "path.job" in answer.json()["detail"]

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "content", "code"),
    [
        ("GET", "/nowhere", b"", 404),
        ("PUT", "/v1/jobs", b"", 405),
        ("PATCH", "/v1/jobs/digits", b"{", 422),
        ("PATCH", "/v1/jobs/digits", b"\xff\xfe", 422),
        ("PATCH", "/v1/jobs/digits", b'{"max": NaN}', 422),
        ("PATCH", "/v1/jobs/digits", b"[" * 30_000, 400),
        ("PATCH", "/v1/jobs/digits", b'{"max": ' + b"9" * 5000 + b"}", 400),
        ("PATCH", "/v1/jobs/digits", b" " * 100_000, 413),
        ("GET", "/v1/jobs/digits/events?after=" + "x" * 100, b"", 422),
    ],
)
def test_every_error_is_json_with_a_detail(
    run: Run, run_job: RunJob, method: str, path: str, content: bytes, code: int
) -> None:
    async def scenario() -> None:
        async with run_job(1) as running:
            headers = {"content-type": "application/json"}
            answer = await running.http.request(method, path, content=content, headers=headers)
            assert answer.status_code == code
            assert isinstance(answer.json()["detail"], str)

    run(scenario())


def test_a_body_that_grows_too_long_while_it_comes_is_refused(run: Run, run_job: RunJob) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1024

    async def scenario() -> None:
        async with run_job(1) as running:
            headers = {"content-type": "application/json"}
            answer = await running.http.patch("/v1/jobs/digits", content=body(), headers=headers)
            assert answer.status_code == 413
            assert answer.json()["detail"]

    run(scenario())


def test_the_description_has_examples_and_names_every_address(run: Run, run_job: RunJob) -> None:
    async def scenario() -> None:
        async with run_job(0) as running:
            described = (await running.http.get("/openapi.json")).json()
            assert set(described["paths"]) == {
                "/healthz",
                "/readyz",
                "/metrics",
                "/v1/jobs",
                "/v1/jobs/{job}",
                "/v1/jobs/{job}/events",
                "/v1/jobs/{job}/drain",
                "/v1/jobs/{job}/gone",
            }
            assert set(described["paths"]["/v1/jobs/{job}"]) == {"get", "patch", "delete"}
            schemas = described["components"]["schemas"]
            assert "HTTPValidationError" not in schemas
            for name in ("DrainHost", "DrainWorker", "Resize", "WorkerView", "Problem"):
                fields = schemas[name]["properties"].values()
                assert all("examples" in field for field in fields), name

    run(scenario())


def test_a_server_is_ready_while_it_serves(run: Run, run_job: RunJob) -> None:
    async def scenario() -> None:
        async with run_job(0) as running:
            assert (await running.http.get("/readyz")).json() == {"status": "ready"}
            running.server._app.state.jobs.stopping = True
            answer = await running.http.get("/readyz")
            assert (answer.status_code, answer.json()["detail"]) == (503, "the rendezvous server stops")
            assert (await running.http.get("/healthz")).status_code == 200

    run(scenario())
