"""What the agent knows of one worker, from the messages that pass through it: enough to tell any server all about it again."""

from __future__ import annotations

from dataclasses import dataclass

from ..rendezvous.messages import (
    Announce,
    Broken,
    Crashed,
    Done,
    Drain,
    Evicted,
    Finished,
    Formed,
    FromWorker,
    Ready,
    Registered,
    Release,
    Released,
    ToWorker,
    WorkerClaim,
)
from .output.prefixes import Label


@dataclass
class WorkerRecord:
    """One worker process's life. Pure: `said` and `told` take the messages, the attributes say where the worker is."""

    worker: str
    local_rank: int
    phase: str = "preparing"
    lineage: int = 0  # newest generation whose state it holds, as far as is known to be durable
    formed: int = 0  # newest generation that it has reported as formed
    broken: int = 0  # newest generation that it has reported as broken
    checkpoint: int = 0
    announced: int = 0  # newest generation that it has a place in, a leaver's too
    generation: int = 0  # generation and rank that its output is labelled with
    rank: int = -1
    registered: bool = False
    finished: bool = False
    leaving: bool = False
    evicted: bool = False  # and has not answered since
    evictions: int = 0
    released: bool = False
    told_done: bool = False

    def __post_init__(self) -> None:
        self._announced_rank = -1

    def said(self, message: FromWorker | Crashed) -> None:
        if isinstance(message, Registered):
            self.registered = True
        elif isinstance(message, Ready):
            self.registered = True
            self.evicted = False
            self.phase, self.lineage, self.checkpoint = "ready", message.lineage, message.checkpoint
        elif isinstance(message, Formed):
            self.phase = "member"
            self.formed = message.generation
            if self.announced == message.generation:
                self.generation, self.rank = message.generation, self._announced_rank
        elif isinstance(message, (Broken, Crashed)):
            self.broken = max(self.broken, message.generation)
        elif isinstance(message, Finished):
            self.finished = True
            self.phase = "finished"

    def told(self, message: ToWorker) -> None:
        if isinstance(message, Announce):
            for place in message.places:
                if place.worker == self.worker:
                    self.announced, self._announced_rank = message.generation, place.rank
            if message.formed == self.formed:
                self.lineage = max(self.lineage, message.formed)
        elif isinstance(message, Release):
            if message.generation == self.formed:
                self.lineage = message.generation
        elif isinstance(message, Drain):
            self.leaving = True
        elif isinstance(message, Evicted):
            self.evicted = True
            self.evictions += 1
        elif isinstance(message, Released):
            self.released = True
        elif isinstance(message, Done):
            self.told_done = True

    def claim(self) -> WorkerClaim:
        return WorkerClaim(
            worker=self.worker,
            local_rank=self.local_rank,
            phase=self.phase,
            lineage=self.lineage,
            formed=self.formed,
            broken=self.broken,
            checkpoint=self.checkpoint,
            leaving=self.leaving,
        )

    def label(self, host: str) -> Label:
        """Whose output it is that this worker writes."""
        return Label(host, self.local_rank, self.generation, self.rank)
