"""All jobs of one server: made when their first agent comes, forgotten some time after they have ended."""

from __future__ import annotations

import asyncio
import logging

from ..errors import RendezvousError
from .clock import AwakeClock
from .job import Connection, Job, NewMembership
from .leadership import Mandate
from .membership.members import Timing
from .messages import JobSpec
from .stores.records import PREFIX, decode
from .stores.store import FenceLost, StoreUnavailable

logger = logging.getLogger(__name__)

_REMOVE_WITHIN = 10.0  # seconds
_GLANCE = 0.1  # seconds between two readings of the clock


class Jobs:
    """`start` and `stop` bracket its life on one event loop."""

    def __init__(
        self,
        mandate: Mandate | None,
        timing: Timing,
        new_membership: NewMembership,
        keep: float,
    ) -> None:
        """`mandate` is None while another server decides.

        `keep` is how long (seconds) an ended job without agents is still shown, and refuses to start anew under its name.
        """
        self.clock = AwakeClock()
        self.connections: set[Connection] = set()
        """Every agent's connection, so that a stop can end them all."""
        self.stopping = False
        """Whether agents that come are to be sent away, as their jobs are not over but no longer known here."""
        self._mandate = mandate
        self._keep = keep
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
        tasks = self._drop("the rendezvous server stops")
        if self._keeper is not None:
            self._keeper.cancel()
            tasks.append(self._keeper)
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def decides(self) -> bool:
        """Whether this server is the one that agents are to talk to."""
        return self._mandate is not None and self._mandate.holds() and not self.stopping

    async def take_over(self, mandate: Mandate) -> None:
        """This server decides from here on, of all jobs that the store knows. StoreUnavailable, FenceLost."""
        for key, held in (await mandate.store.read(PREFIX)).items():
            name = key.removeprefix(PREFIX)
            try:
                facts = decode(name, held.value).facts
            except RendezvousError as error:
                logger.error("%s; it is left alone", error)
                continue
            if facts is not None:
                self._create(name, facts.spec, mandate)
        self._mandate = mandate

    def step_down(self, reason: str) -> None:
        """This server decides no more: nothing is said to anybody from here on, and the agents look for the one that does."""
        self._mandate = None
        self._drop(f"this rendezvous server does not lead: {reason}")

    def names(self) -> list[str]:
        return sorted(self._jobs)

    def get(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def get_or_create(self, name: str, spec: JobSpec) -> Job:
        """The job of this name, whatever its spec: the machine compares them and refuses the agent, not the job.

        Only while this server decides.
        """
        assert self._mandate is not None
        return self._jobs.get(name) or self._create(name, spec, self._mandate)

    async def remove(self, job: Job) -> None:
        """Forgets an ended job, here and in the store. StoreUnavailable, FenceLost."""
        await job.remove()
        self._forget(job)

    def _create(self, name: str, spec: JobSpec, mandate: Mandate) -> Job:
        job = self._jobs[name] = Job(name, spec, self._timing, mandate, self.clock, self._new_membership)
        task = self._tasks[name] = asyncio.ensure_future(job.run())
        task.add_done_callback(lambda task: self._ended(job, task))
        return job

    def _drop(self, reason: str) -> list[asyncio.Task[None]]:
        tasks, jobs = [*self._tasks.values()], [*self._jobs.values()]
        self._tasks.clear()
        self._jobs.clear()
        for job in jobs:
            job.abandon(reason)
        for connection in [*self.connections]:
            connection.end(reason)
        for task in tasks:
            task.cancel()
        return tasks

    def _forget(self, job: Job) -> None:
        if self._jobs.get(job.name) is job:
            del self._jobs[job.name]
            self._tasks.pop(job.name).cancel()

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        if self._jobs.get(job.name) is job:
            del self._jobs[job.name], self._tasks[job.name]
        if not task.cancelled() and task.exception() is not None:
            logger.error("job %s ends on this server, its agents may come again", job.name, exc_info=task.exception())
            job.abandon("internal error of the rendezvous server")
        else:
            job.abandon("the job has ended here")

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_GLANCE)
            now = self.clock.now()
            for job in [*self._jobs.values()]:
                if job.ended_at is not None and job.deserted.is_set() and now >= job.ended_at + self._keep:
                    await self._collect(job)

    async def _collect(self, job: Job) -> None:
        try:
            await asyncio.wait_for(self.remove(job), _REMOVE_WITHIN)
        except (StoreUnavailable, FenceLost, asyncio.TimeoutError) as error:
            logger.warning("job %s has ended and could not be removed from the store yet: %s", job.name, error)
        else:
            logger.info("job %s is forgotten", job.name)
