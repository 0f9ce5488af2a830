"""All jobs of one server: made when their first agent comes, forgotten some time after they have ended."""

from __future__ import annotations

import asyncio
import logging

from .clock import AwakeClock
from .job import Connection, Job, NewMembership
from .members import Timing
from .membership import Membership
from .messages import JobSpec
from .store import Store

logger = logging.getLogger(__name__)

KEEP = 60.0  # seconds for which an ended job without agents is still shown, and refuses to start anew under its name
_GLANCE = 0.1  # seconds between two readings of the clock


class Jobs:
    """`start` and `stop` bracket its life on one event loop."""

    def __init__(self, store: Store, timing: Timing, new_membership: NewMembership = Membership) -> None:
        self.clock = AwakeClock()
        self.connections: set[Connection] = set()
        """Every agent's connection, so that a stop can end them all."""
        self.stopping = False
        """Whether agents that come are to be sent away, as their jobs are not over but no longer known here."""
        self._store = store
        self._timing = timing
        self._new_membership = new_membership
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeper = asyncio.ensure_future(self._keep_house())

    async def stop(self) -> None:
        """Ends every job's task and every agent's connection. The jobs themselves are not over. May be called again."""
        self.stopping = True
        for connection in [*self.connections]:
            connection.end("the rendezvous server stops")
        tasks = [*self._tasks.values(), *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def names(self) -> list[str]:
        return sorted(self._jobs)

    def get(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def get_or_create(self, name: str, spec: JobSpec) -> Job:
        """The job of this name, whatever its spec: the machine compares them and refuses the agent, not the job."""
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = Job(name, spec, self._timing, self._store, self.clock, self._new_membership)
            task = self._tasks[name] = asyncio.ensure_future(job.run())
            task.add_done_callback(lambda task: self._ended(name, task))
        return job

    async def remove(self, name: str) -> None:
        """An ended job is forgotten at once, with its record: its name is free. StoreUnavailable, and then nothing is."""
        job, task = self._jobs[name], self._tasks[name]
        await job.remove_record()
        task.cancel()
        await asyncio.wait([task])

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        job = self._jobs.pop(name)
        del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            logger.error("job %s ends on this server, its agents may come again", name, exc_info=task.exception())
            job.abandon("internal error of the rendezvous server")
        else:
            job.abandon("the job has ended here")

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_GLANCE)
            now = self.clock.now()
            for name, job in [*self._jobs.items()]:
                if job.ended_at is not None and job.deserted.is_set() and now >= job.ended_at + KEEP:
                    logger.info("job %s is forgotten", name)
                    self._tasks[name].cancel()
