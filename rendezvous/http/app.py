"""The server's HTTP application, put together: a WebSocket for each agent, probes, and the jobs for people and controllers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI, Request, Security, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer

from ..agent_connection import AgentConnection
from ..job import NewMembership
from ..jobs import Jobs
from ..leader_only import LeaderOnly
from ..leadership import Leadership, Mandate
from ..membership.machine import Membership
from ..membership.members import Timing
from ..stores.store import Fence, Store
from .authorization import Authorization
from .events import Streams
from .face import Face
from .job_routes import job_routes
from .metrics import Metrics
from .probes import OPEN, probe_routes
from .refusal import BodySize

logger = logging.getLogger(__name__)

_STOPPING = 1.0  # seconds for giving up the lead in order

_DESCRIPTION = """\
The rendezvous of elastic-launch jobs. Agents talk to it over a WebSocket; this is the rest: jobs, their events, planned
changes, probes and metrics. Every error is answered with `{"detail": "..."}`.
"""


@dataclass(frozen=True)
class Election:
    """How a replica takes part: `url` is where others reach it, `lease` how long (seconds) a silent leader leads.

    Without a `url` it is the address from which this host speaks to `towards` (HOST:PORT), and the server's port.
    """

    url: str = ""
    lease: float = 3.0
    towards: str = ""


def create_app(
    store: Store,
    timing: Timing | None = None,
    new_membership: NewMembership = Membership,
    election: Election | None = None,
    face: Face = Face(),
) -> FastAPI:
    """The application; `app.state.jobs` holds its jobs, which live from its start-up to its shutdown.

    With `election` it is one of several replicas, of which one leads; otherwise it decides from the start.
    """
    jobs = Jobs(
        Mandate(store) if election is None else None, timing or Timing(), new_membership, face.limits.keep_finished
    )
    leadership = None

    if election is not None:

        async def take_over(fence: Fence) -> None:
            await jobs.take_over(Mandate(store, fence, lambda: leading.leads, leading.lose))

        leading = leadership = Leadership(store, election.url, election.lease, take_over, jobs.step_down)

    streams = Streams(face.limits.streams)

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

    app = FastAPI(
        title="elastic-rendezvous",
        description=_DESCRIPTION,
        version="1",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.jobs = jobs
    app.state.streams = streams
    app.state.leadership = leadership
    if leadership is not None:
        app.add_middleware(LeaderOnly, leadership=leadership, leads=lambda: jobs.decides)
    app.add_middleware(BodySize, limit=face.limits.body)
    app.add_middleware(
        Authorization, tokens=face.tokens, open_paths={*OPEN, "/metrics"} if face.open_metrics else {*OPEN}
    )
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(Exception, _failed)
    guard = [Security(HTTPBearer(auto_error=False))] if face.tokens is not None else []
    app.include_router(probe_routes(store, jobs, Metrics(jobs, streams), [] if face.open_metrics else guard))
    app.include_router(job_routes(jobs, streams, guard))

    @app.websocket("/v1/jobs/{job}/agent")
    async def agent(websocket: WebSocket, job: str) -> None:
        await AgentConnection(websocket, jobs, job, face.limits).serve()

    return app


async def _not_valid(request: Request, error: Exception) -> JSONResponse:
    """What was given is not repeated: it may be anything."""
    assert isinstance(error, RequestValidationError)
    told = [f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()[:5]]
    return JSONResponse({"detail": "; ".join(told)[:1000]}, 422)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "internal error of the rendezvous server"}, 500)
