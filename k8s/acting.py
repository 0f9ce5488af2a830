"""What a controller does: it tells the rendezvous server, changes the cluster, and says so to people."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ..rendezvous.job import Job, JobOver
from ..rendezvous.membership.machine import Membership
from .cluster import Cluster, Json
from .errors import ClusterError, Conflict, NotFound
from .reconciling import Create, Delete, Fail, Resize, TellDrain, TellGone
from .reporting import Reporter
from .request import JobRequest
from .worker_pod import worker_pod

logger = logging.getLogger(__name__)

_AFTER_A_REFUSAL = 5.0  # seconds until pods that the cluster does not take, for a quota perhaps, are tried again
_PATIENCE = 1.0  # seconds between two attempts at what has to be

T = TypeVar("T")


class Hands:
    """`made` is called with each pod that was created. What does not work is tried again at the next look."""

    def __init__(
        self,
        cluster: Cluster,
        job_object: Json,
        request: JobRequest,
        job: Job,
        address: str,
        made: Callable[[Json], None],
    ) -> None:
        self.told: set[str] = set()
        """Ids of the pods that the server knows to be gone."""
        self.stopped_for = ""
        """Why the job was told to end, if it was."""
        self._cluster = cluster
        self._uid = job_object["metadata"]["uid"]
        self._request = request
        self._job = job
        self._address = address
        self._made = made
        self._reporter = Reporter(cluster, job_object)
        self._refusal = ""
        self._no_creation_before = 0.0

    async def tell(self, action: TellGone | TellDrain | Resize | Fail) -> None:
        """Something that the rendezvous server is to know."""
        if isinstance(action, TellGone):
            await self._command(lambda machine, now: machine.gone(action.pod, action.reason, now))
            self.told.add(action.pod)
            await self.say("PodGone", action.reason)
        elif isinstance(action, TellDrain):
            if await self._command(lambda machine, now: machine.drain_host(action.pod, now)):
                await self.say("PodLeaving", f"pod {action.name} leaves the job by plan")
        elif isinstance(action, Resize):
            await self._command(lambda machine, now: machine.resize(action.min, action.max, now))
            await self.say("Scaled", f"{action.min} to {action.max} workers")
        elif not self.stopped_for:
            self.stopped_for = action.reason
            await self._command(lambda machine, now: machine.stop(action.code, action.reason, now))

    async def _command(self, act: Callable[[Membership, float], Any]) -> bool:
        """False if the job takes no such command: it is over, or nobody is there."""
        try:
            await self._job.command(act)
        except (JobOver, KeyError):
            return False
        except asyncio.TimeoutError:
            logger.warning("job %s: the server has not made a change durable in time", self._request.name)
        return True

    async def change(self, action: Create | Delete) -> None:
        """Something in the cluster. What does not work is tried again at the next look."""
        if isinstance(action, Create) and asyncio.get_running_loop().time() < self._no_creation_before:
            return
        try:
            if isinstance(action, Create):
                pod = worker_pod(self._request, action.number, self._uid, self._address)
                self._made(await in_thread(lambda: self._create(pod)))
            else:
                logger.info("deleting pod %s: %s", action.pod.name, action.reason)
                uid = action.pod.uid
                await in_thread(lambda: self._cluster.delete_pod(action.pod.name, uid))
        except (Conflict, NotFound) as error:
            logger.info("%s: %s", action, error)
        except ClusterError as error:
            logger.warning("%s", error)
            if isinstance(action, Create):
                self._no_creation_before = asyncio.get_running_loop().time() + _AFTER_A_REFUSAL
            if str(error) != self._refusal:
                self._refusal = str(error)
                await self.say("ClusterRefuses", self._refusal, warning=True)

    def _create(self, pod: Json) -> Json:
        """Not for a job that is being deleted, which the watch may tell late."""
        if self._cluster.job(self._request.name)["metadata"].get("deletionTimestamp"):
            raise Conflict("the job is being deleted")
        return self._cluster.create(pod)

    async def say(self, reason: str, message: str, warning: bool = False) -> None:
        """As a Kubernetes Event on the job's object."""
        await in_thread(lambda: self._reporter.say(reason, message, warning))

    async def insist(self, patch: Json) -> None:
        """Changes the job's object; returns once the API server has taken it."""
        while True:
            try:
                await in_thread(lambda: self._cluster.patch_job(self._request.name, patch))
                return
            except NotFound:
                return
            except ClusterError as error:
                logger.warning("the job's object cannot be changed: %s", error)
                await asyncio.sleep(_PATIENCE)


async def in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)
