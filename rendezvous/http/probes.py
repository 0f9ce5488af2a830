"""What a cluster asks the server: whether it lives, whether it can serve, and its metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.params import Depends

from ...errors import RendezvousError
from ..jobs import Jobs
from ..stores.store import Store
from .metrics import Metrics
from .views import Health, Problem, Readiness

OPEN = frozenset({"/healthz", "/readyz"})
_PATIENCE = 2.0  # seconds
_FRESH = 1.0  # seconds for which the store's last answer counts


class StoreProbe:
    """Whether the store answers; asked once a second at most, however often that is wanted to be known."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asking = asyncio.Lock()
        self._problem = ""
        self._asked_at = float("-inf")

    async def problem(self) -> str:
        """Empty if all is well."""
        async with self._asking:
            if time.monotonic() - self._asked_at > _FRESH:
                self._problem = await self._ask()
                self._asked_at = time.monotonic()
            return self._problem

    async def _ask(self) -> str:
        try:
            await asyncio.wait_for(self._store.get("probe"), _PATIENCE)
        except asyncio.TimeoutError:
            return f"the store has not answered within {_PATIENCE:g} s"
        except RendezvousError as error:
            return f"the store does not answer: {error}"
        return ""


def probe_routes(store: Store, jobs: Jobs, metrics: Metrics, guard: Sequence[Depends] = ()) -> APIRouter:
    """`guard` describes what the metrics want to be shown."""
    router = APIRouter(tags=["probes"])
    probe = StoreProbe(store)

    @router.get("/healthz", response_model=Health)
    async def health() -> dict[str, Any]:
        """The process lives and its event loop turns."""
        return {"status": "ok", "jobs": len(jobs.names()), "paused_seconds": round(jobs.clock.paused, 3)}

    @router.get("/readyz", response_model=Readiness, responses={503: {"model": Problem, "description": "Not ready."}})
    async def ready() -> dict[str, Any]:
        """Agents can be served: the server is not about to stop, and the store answers."""
        problem = "the rendezvous server stops" if jobs.stopping else await probe.problem()
        if problem:
            raise HTTPException(503, problem)
        return {"status": "ready"}

    @router.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {"description": "Metrics for Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}},
            401: {"model": Problem, "description": "The token is missing or wrong."},
        },
        dependencies=[*guard],
    )
    async def show_metrics(request: Request) -> Response:
        text, content_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    return router
