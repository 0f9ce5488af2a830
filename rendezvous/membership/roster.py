"""Who is there: the agents and workers that the server knows, and what can be said of them at the moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .members import Agent, FormedGeneration, Generation, Timing, Worker


@dataclass
class Roster:
    """Plain books, and questions to them.

    `dead` keeps the workers whose end is certain, `gone` the agents and pods that cannot come back; `unseen_until` is how
    long a restarted server waits for the members that it only knows from the store.
    """

    agents: dict[str, Agent] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    dead: dict[str, Worker] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    formed: FormedGeneration | None = None
    unseen_until: float = 0.0
    _order: int = 0

    def add_agent(self, name: str, host: str, meeting: str, now: float, pod: str = "") -> Agent:
        agent = self.agents.get(name)
        if agent is None:
            self._order += 1
            agent = self.agents[name] = Agent(name, host, meeting, self._order, now)
        agent.host, agent.meeting, agent.since, agent.pod = host, meeting, now, pod
        agent.connected, agent.absent = True, False
        return agent

    def add_worker(self, nonce: str, agent: str, local_rank: int, now: float) -> Worker:
        worker = self.workers[nonce] = self.agents[agent].workers[nonce] = Worker(nonce, agent, local_rank, now)
        return worker

    def bury(self, nonce: str, fate: str) -> None:
        """The worker's end is certain."""
        worker = self.workers.pop(nonce, None)
        if worker is not None:
            worker.fate = fate
            del self.agents[worker.agent].workers[nonce]
            self.dead[nonce] = worker

    def forget(self, name: str) -> None:
        """Drop an agent with its workers."""
        for nonce in self.agents.pop(name).workers:
            del self.workers[nonce]

    def is_gone(self, agent: str, pod: str) -> bool:
        return agent in self.gone or pod in self.gone

    def of_agent(self, name: str) -> list[Worker]:
        agent = self.agents.get(name)
        return [*agent.workers.values()] if agent is not None else []

    def agent_of(self, worker: Worker) -> Agent:
        return self.agents[worker.agent]

    def here(self, worker: Worker) -> bool:
        return self.agents[worker.agent].here

    def presence(self, nonce: str, now: float) -> str:
        """One of "here", "suspected", "absent", "dead"."""
        worker = self.workers.get(nonce)
        if worker is None:
            if nonce in self.dead:
                return "dead"
            return "suspected" if now < self.unseen_until else "absent"
        agent = self.agents[worker.agent]
        return "here" if agent.here else "absent" if agent.absent else "suspected"

    def awaits_members(self, now: float) -> bool:
        """Whether members that are known from the store alone may still come."""
        if now >= self.unseen_until or self.formed is None:
            return False
        return any(nonce not in self.workers and nonce not in self.dead for nonce in self.formed.members)

    def is_holder(self, worker: Worker) -> bool:
        """Whether it holds the state of the last formed generation."""
        formed = self.formed
        return formed is not None and worker.lineage == formed.generation and worker.nonce in formed.ranks

    def able_holders(self) -> list[Worker]:
        """Holders that can be members of the next generation, in their order."""
        found = (self.workers.get(nonce) for nonce in (self.formed.members if self.formed else ()))
        return [
            worker
            for worker in found
            if worker is not None
            and worker.phase in ("member", "ready")
            and not worker.released
            and self.here(worker)
            and self.is_holder(worker)
        ]

    def ready(self) -> list[Worker]:
        """Workers that wait to be taken in, host by host in the order of arrival."""
        found = [
            worker
            for worker in self.workers.values()
            if worker.phase == "ready" and not worker.leaving and not worker.released and self.here(worker)
        ]
        return sorted(found, key=lambda worker: (self.agents[worker.agent].order, worker.local_rank, worker.nonce))

    def coming(self, now: float, timing: Timing) -> list[Worker]:
        """Workers that are not ready, but can be expected to be so."""
        return [
            worker
            for worker in self.workers.values()
            if not worker.leaving
            and not worker.released
            and self.here(worker)
            and (worker.phase == "preparing" or self.was_recalled(worker, now, timing))
        ]

    def was_recalled(self, worker: Worker, now: float, timing: Timing) -> bool:
        return worker.phase == "evicted" and now < worker.evicted_at + timing.recall

    def finished(self) -> list[Worker]:
        return [
            worker
            for worker in self.workers.values()
            if worker.phase == "finished" and not worker.released and not self.agents[worker.agent].absent
        ]

    def count(self) -> int:
        """Workers that count towards `min`: members, those ready to be, and finished ones."""
        found = [
            worker
            for worker in self.workers.values()
            if worker.phase in ("member", "ready") and not worker.leaving and not worker.released and self.here(worker)
        ]
        return len(found) + len(self.finished())

    def name(self, nonce: str, rings: Iterable[Generation | FormedGeneration | None] = ()) -> str:
        """ "worker 2 on host-a": what people call it, by its rank in the first of `rings` that it was part of."""
        worker = self.workers.get(nonce) or self.dead.get(nonce)
        agent = self.agents.get(worker.agent) if worker is not None else None
        place = f" on {agent.host}" if agent is not None else ""
        for ring in rings:
            if ring is not None and (rank := ring.ranks.get(nonce, -1)) >= 0:
                return f"worker {rank}{place}"
        return f"a worker{place}"
