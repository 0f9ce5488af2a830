"""A job's books as plain data, for people and programs that ask over HTTP."""

from __future__ import annotations

from typing import Any

from .books import Books
from .members import Worker


def snapshot(books: Books, state: str, now: float) -> dict[str, Any]:
    """`state` is the membership's. Costs O(workers)."""
    current = books.current
    ranks = {nonce: rank for rank, nonce in enumerate(current.members)} if current is not None else {}
    workers = [_worker(books, worker, ranks.get(worker.nonce, -1), now) for worker in books.roster.workers.values()]
    workers.sort(key=lambda worker: (worker["rank"] < 0, worker["rank"], worker["worker"]))
    ahead = max((worker for worker in workers if worker["rank"] >= 0), key=lambda worker: worker["step"], default=None)
    return {
        "state": state,
        "spec": {
            "min": books.spec.min,
            "max": books.spec.max,
            "max_restarts": books.spec.max_restarts,
            "min_timeout": books.spec.min_timeout,
        },
        "formed": books.formed_number,
        "generation": current.number if current is not None else 0,
        "generation_state": current.state if current is not None else "none",
        "world_size": len(current.members) if current is not None else 0,
        "parked": current.parked if current is not None else False,
        "cause": current.cause if current is not None else "",
        "reason": current.reason if current is not None else "",
        "agents": sum(agent.connected for agent in books.roster.agents.values()),
        "standby": sum(worker["phase"] == "ready" and worker["rank"] < 0 for worker in workers),
        "step": ahead["step"] if ahead else 0,
        "steps_per_second": ahead["steps_per_second"] if ahead else 0.0,
        "samples_per_second": ahead["samples_per_second"] if ahead else 0.0,
        "crashes": books.budget.used,
        "failure": {"code": books.failure.code, "reason": books.failure.reason} if books.failure else None,
        "workers": workers,
    }


def _worker(books: Books, worker: Worker, rank: int, now: float) -> dict[str, Any]:
    steps, samples = worker.pace.speed(now)
    return {
        "worker": worker.nonce,
        "host": books.roster.agent_of(worker).host,
        "pod": books.roster.agent_of(worker).pod,
        "agent": worker.agent,
        "local_rank": worker.local_rank,
        "rank": rank,
        "phase": worker.phase,
        "presence": books.roster.presence(worker.nonce, books.clock),
        "lineage": worker.lineage,
        "leaving": worker.leaving,
        "released": worker.released,
        "step": worker.pace.step,
        "steps_per_second": round(steps, 3),
        "samples_per_second": round(samples, 3),
    }
