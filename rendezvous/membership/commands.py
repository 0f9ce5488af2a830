"""What people and controllers ask for does to the books."""

from __future__ import annotations

from ..messages import Drain, Failed
from .books import Books
from .members import Worker
from .reports import leave


def stop(books: Books, failure: Failed) -> None:
    """End the job in order: everybody may go, holders write the last-resort checkpoint first."""
    if books.stopping is not None or books.finishing:
        return
    books.stopping, books.stop_at = failure, books.now + books.spec.shutdown_timeout
    books.note("stopping", failure.reason, code=failure.code)
    holders = {worker.nonce for worker in books.roster.able_holders()}
    for worker in list(books.roster.workers.values()):
        if not worker.released:
            books.release(worker, last_holder=worker.nonce in holders)


def drain(books: Books, worker: Worker) -> None:
    """The worker is asked to leave by plan."""
    leave(books, worker)
    books.drained.add(worker.nonce)
    books.tell(worker.agent, Drain(worker.nonce))


def drain_host(books: Books, host: str) -> None:
    """Whatever runs there, or is started there by the agents that are known, is to leave. `host` may be a pod's id.

    KeyError if no agent is there.
    """
    agents = [agent for agent in books.roster.agents.values() if host in (agent.host, agent.pod)]
    if not agents:
        raise KeyError(host)
    for agent in agents:
        agent.leaving = True
        books.drained_agents.add(agent.name)
        books.vacated = {slot for slot in books.vacated if slot[0] != agent.name}
        for worker in books.roster.of_agent(agent.name):
            drain(books, worker)
