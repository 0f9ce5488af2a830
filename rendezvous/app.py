"""The server's HTTP face: a WebSocket for each agent, and a few plain addresses for people, probes and controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException, WebSocket
from pydantic import BaseModel

from .agent_connection import AgentConnection
from .job import Job, NewMembership
from .jobs import Jobs
from .leader_only import LeaderOnly
from .leadership import Leadership, Mandate
from .members import Timing
from .membership import Membership
from .store import Fence, Store

_STOPPING = 1.0  # seconds for giving up the lead in order


@dataclass(frozen=True)
class Election:
    """How a replica takes part: `url` is where others reach it, `lease` how long (seconds) a silent leader leads.

    Without a `url` it is the address from which this host speaks to `towards` (HOST:PORT), and the server's port.
    """

    url: str = ""
    lease: float = 3.0
    towards: str = ""


class DrainRequest(BaseModel):
    worker: str
    """The nonce of the worker that is to leave."""


def create_app(
    store: Store,
    timing: Timing | None = None,
    new_membership: NewMembership = Membership,
    election: Election | None = None,
) -> FastAPI:
    """The application; `app.state.jobs` holds its jobs, which live from its start-up to its shutdown.

    With `election` it is one of several replicas, of which one leads; otherwise it decides from the start.
    """
    jobs = Jobs(Mandate(store) if election is None else None, timing or Timing(), new_membership)
    leadership = None

    if election is not None:

        async def take_over(fence: Fence) -> None:
            await jobs.take_over(Mandate(store, fence, lambda: leading.leads, leading.lose))

        leading = leadership = Leadership(store, election.url, election.lease, take_over, jobs.step_down)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        jobs.start()
        running = asyncio.ensure_future(leadership.run()) if leadership else None
        yield
        await jobs.stop()
        if running is not None:
            running.cancel()
            await asyncio.wait([running], timeout=_STOPPING)
        await store.close()

    app = FastAPI(title="elastic-rendezvous", lifespan=lifespan)
    app.state.jobs = jobs
    app.state.leadership = leadership
    if leadership is not None:
        app.add_middleware(LeaderOnly, leadership=leadership, leads=lambda: jobs.decides)

    def known(name: str) -> Job:
        job = jobs.get(name)
        if job is None:
            raise HTTPException(404, f"job {name!r} is not known here")
        return job

    @app.websocket("/v1/jobs/{name}/agent")
    async def agent(websocket: WebSocket, name: str) -> None:
        await AgentConnection(websocket, jobs, name).serve()

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "jobs": len(jobs.names()), "paused_seconds": round(jobs.clock.paused, 3)}

    @app.get("/v1/jobs")
    async def list_jobs() -> dict[str, Any]:
        return {"jobs": [{"job": name, "state": known(name).snapshot().get("state")} for name in jobs.names()]}

    @app.get("/v1/jobs/{name}")
    async def show_job(name: str) -> dict[str, Any]:
        return known(name).snapshot()

    @app.get("/v1/jobs/{name}/events")
    async def show_events(name: str) -> dict[str, Any]:
        return {"job": name, "events": [*known(name).history]}

    @app.post("/v1/jobs/{name}/drain", status_code=202)
    async def drain(name: str, request: DrainRequest) -> dict[str, Any]:
        try:
            await known(name).drain(request.worker)
        except KeyError:
            raise HTTPException(404, f"job {name!r} has no worker {request.worker!r}") from None
        except asyncio.TimeoutError:
            raise HTTPException(503, f"job {name!r} cannot take up the drain at present, try again") from None
        return {"draining": request.worker}

    return app
