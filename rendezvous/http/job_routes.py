"""Jobs over HTTP: shown to people, followed by dashboards, changed by controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from fastapi.params import Depends
from fastapi.responses import StreamingResponse

from ..job import Job, JobOver
from ..jobs import Jobs
from ..membership.effects import Effect
from ..membership.machine import Membership
from ..stores.store import FenceLost, StoreUnavailable
from .events import Streams
from .views import (
    DrainHost,
    Draining,
    DrainWorker,
    EventList,
    GoneAgent,
    GonePod,
    JobList,
    JobName,
    JobView,
    Loss,
    Removal,
    Resize,
    problems,
)

STOPPED = 130  # exit code of a job that is stopped over HTTP, as of one stopped by SIGINT
_STREAM = "text/event-stream"
_EventId = Annotated[str, Query(max_length=64, description="Only what has come after the event with this id.")]
_LastEventId = Annotated[str, Header(max_length=64, description="As `after`, for a reader that comes back.")]


def job_routes(jobs: Jobs, streams: Streams, guard: Sequence[Depends] = ()) -> APIRouter:
    """`guard` describes what the addresses want to be shown."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[*guard])

    def known(name: str) -> Job:
        job = jobs.get(name)
        if job is None:
            raise HTTPException(404, f"job {name!r} is not known here")
        return job

    async def command(job: Job, what: str, act: Callable[[Membership, float], list[Effect]]) -> None:
        """`what` for people; a job that is over, or about to be, is not changed any more."""
        try:
            await job.command(act)
        except JobOver as error:
            raise HTTPException(409, str(error)) from None
        except asyncio.TimeoutError:
            raise HTTPException(503, f"job {job.name!r} cannot take up {what} at present, try again") from None

    @router.get("", response_model=JobList, responses=problems())
    async def list_jobs() -> dict[str, Any]:
        """The jobs of this server; an ended one for as long as `--keep-finished` says."""
        return {"jobs": [known(name).snapshot() for name in jobs.names()]}

    @router.get("/{job}", response_model=JobView, responses=problems(404))
    async def show_job(job: JobName) -> dict[str, Any]:
        """One job with its workers: where each is, its rank, its step and its speed."""
        return known(job).snapshot()

    @router.get(
        "/{job}/events",
        response_model=EventList,
        responses={
            200: {"description": "The events, at once or as they happen.", "content": {_STREAM: {"schema": {}}}},
            **problems(404, 503),
        },
    )
    async def show_events(
        job: JobName,
        request: Request,
        follow: bool = Query(False, description="Go on with what happens, as server-sent events."),
        after: _EventId = "",
        last_event_id: _LastEventId = "",
    ) -> Any:
        """What has happened in the job, and why. With `Accept: text/event-stream` as with `follow`."""
        history = known(job).history
        if follow or _STREAM in request.headers.get("accept", ""):
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            following = streams.follow(history, last_event_id or after)
            return StreamingResponse(following, media_type=_STREAM, headers=headers)
        return {"job": job, "events": history.after(after)}

    @router.post("/{job}/drain", status_code=202, response_model=Draining, responses=problems(400, 404, 409, 413, 503))
    async def drain(job: JobName, request: DrainWorker | DrainHost) -> dict[str, Any]:
        """A worker, or all workers of a host, leave after an agreed step, with nothing lost and nothing redone."""
        drained, what = (request.worker, "worker") if isinstance(request, DrainWorker) else (request.host, "host")

        def act(machine: Membership, now: float) -> list[Effect]:
            _check_open(job, machine)
            return machine.drain(drained, now) if what == "worker" else machine.drain_host(drained, now)

        try:
            await command(known(job), "the drain", act)
        except KeyError:
            raise HTTPException(404, f"job {job!r} has no {what} {drained!r}") from None
        return {"draining": drained}

    @router.post("/{job}/gone", status_code=202, response_model=Loss, responses=problems(400, 404, 409, 413, 503))
    async def gone(job: JobName, request: GoneAgent | GonePod) -> dict[str, Any]:
        """An agent or a pod is lost for certain: its workers are not waited for, and it is not let in again."""
        lost, what = (request.agent, "agent") if isinstance(request, GoneAgent) else (request.pod, "pod")

        def act(machine: Membership, now: float) -> list[Effect]:
            if not any(worker[what] == lost for worker in machine.snapshot()["workers"]):
                raise KeyError(lost)
            return machine.gone(lost, request.reason or "so it was told over HTTP", now)

        try:
            await command(known(job), "the loss", act)
        except KeyError:
            raise HTTPException(404, f"job {job!r} has no {what} {lost!r} with workers") from None
        return {"gone": lost}

    @router.patch("/{job}", response_model=JobView, responses=problems(400, 404, 409, 413, 503))
    async def resize(job: JobName, request: Resize) -> dict[str, Any]:
        """The job's `min` and `max` from here on: surplus workers leave by plan, or waiting ones join."""

        def act(machine: Membership, now: float) -> list[Effect]:
            _check_open(job, machine)
            return machine.resize(request.min, request.max, now)

        try:
            await command(known(job), "the change", act)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return known(job).snapshot()

    @router.delete(
        "/{job}",
        response_model=Removal,
        responses={202: {"model": Removal, "description": "It is being stopped."}, **problems(404, 409, 503)},
    )
    async def remove(job: JobName, response: Response) -> dict[str, Any]:
        """A running job is stopped in order, as by SIGINT: its agents exit with 130. A finished one is removed."""
        found = known(job)
        if found.ended_at is not None:
            try:
                await jobs.remove(found)
            except (StoreUnavailable, FenceLost):
                raise HTTPException(503, f"job {job!r} cannot be removed: the store does not answer") from None
            return {"job": job, "state": "removed"}
        await command(found, "the stop", lambda machine, now: machine.stop(STOPPED, "stopped over HTTP", now))
        response.status_code = 202
        return {"job": job, "state": "stopping"}

    return router


def _check_open(job: str, machine: Membership) -> None:
    if machine.state in ("done", "failed", "stopping", "finishing"):
        raise JobOver(f"job {job!r} is {machine.state}: it is changed no more")
