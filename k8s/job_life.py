"""A job from its controller's start to its end: looks, decides (`reconciling.py`), acts, and looks again."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..rendezvous.job import JobOver
from ..rendezvous.membership import Membership
from ..rendezvous.server import Server
from .cluster import Cluster, Json
from .errors import ClusterError, Conflict, NotFound
from .naming import RESULT_ANNOTATION, SCALE_ANNOTATION, worker_selector
from .pods import Pod, pod_of
from .published import Published, status_of
from .reconciling import Create, Delete, Fail, Resize, Served, TellDrain, TellGone, Wanted, reconcile
from .reporting import Reporter
from .request import JobRequest, Result
from .watching import Source, Watcher
from .worker_pod import worker_pod

logger = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0  # seconds, also when nothing happens
_GLANCE = 0.1  # seconds between two looks at whether the job is over
_PENDING_LONG = 10.0  # seconds after which a pod that does not start is reported
_AFTER_A_REFUSAL = 5.0  # seconds until pods that the cluster does not take, for a quota perhaps, are tried again
_END_SLACK = 15.0  # seconds that pods may take longer to end than their grace period
DEADLINE = 124  # exit code of a job that took longer than --active-deadline

T = TypeVar("T")


class JobLife:
    """`run` returns the job's exit code. It ends with an error only if something here is wrong."""

    def __init__(self, cluster: Cluster, job: Json, request: JobRequest, server: Server, address: str) -> None:
        self._cluster = cluster
        self._request = request
        self._address = address
        self._job_object = job
        self._uid = job["metadata"]["uid"]
        self._server = server
        self._job = server.jobs.get_or_create(request.name, request.spec)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._reporter = Reporter(cluster, job)
        self._published = Published(cluster, request.name)
        self._seen: dict[str, str] = {}  # id -> name, of all pods ever seen
        self._told: set[str] = set()  # ids of pods that the server knows to be gone
        self._reported: dict[str, str] = {}  # id -> trouble of a pending pod
        self._stopped_for = ""
        self._no_creation_before = 0.0
        self._pods = self._watcher(
            "pods", cluster.core.list_namespaced_pod, label_selector=worker_selector(request.name)
        )
        self._jobs = self._watcher(
            "job", cluster.batch.list_namespaced_job, field_selector=f"metadata.name={request.name}"
        )

    async def run(self) -> int:
        if RESULT_ANNOTATION in (self._job_object["metadata"].get("annotations") or {}):
            logger.info("job %s was over before this controller began", self._request.name)
        self._pods.start()
        self._jobs.start()
        await self._in_thread(self._pods.listed.wait)
        await self._in_thread(self._jobs.listed.wait)
        while self._job.ended_at is None:
            await self._look()
            await self._wait_for_news()
        return await self._end()

    def stop(self) -> None:
        self._pods.stop()
        self._jobs.stop()

    # --- looking -----------------------------------------------------------------------------------------------------

    def _watcher(self, name: str, call: Callable[..., Any], **selectors: str) -> Watcher:
        def changed() -> None:
            self._loop.call_soon_threadsafe(self._news.set)

        return Watcher(name, Source(call, self._cluster.namespace, selectors), changed)

    async def _wait_for_news(self) -> None:
        """Of the cluster, or until it is time to look anyway; the server's end of the job is seen within a moment."""
        limit = self._loop.time() + _LOOK_AGAIN
        while self._job.ended_at is None and self._loop.time() < limit:
            try:
                await asyncio.wait_for(self._news.wait(), _GLANCE)
                break
            except asyncio.TimeoutError:
                continue
        self._news.clear()

    def _seen_pods(self) -> list[Pod]:
        return [pod_of(item) for item in self._pods.objects()]

    def _wanted(self) -> Wanted:
        objects = [item for item in self._jobs.objects() if item["metadata"]["uid"] == self._uid]
        exists = bool(objects) and not objects[0]["metadata"].get("deletionTimestamp")
        if objects:
            self._job_object = objects[0]
        least, most = self._sizes()
        request = self._request
        return Wanted(request.name, least, most, request.nproc_per_pod, request.backoff_limit, exists)

    def _sizes(self) -> tuple[int, int]:
        """What was last asked for: the annotation, as `elastic-job scale` writes it, else the submission."""
        text = (self._job_object["metadata"].get("annotations") or {}).get(SCALE_ANNOTATION, "")
        try:
            least, most = (int(number) for number in text.split(","))
        except ValueError:
            return self._request.min, self._request.max
        return (least, most) if 1 <= least <= most else (self._request.min, self._request.max)

    def _served(self) -> Served:
        snapshot = self._job.snapshot()
        spec = snapshot.get("spec") or {"min": self._request.spec.min, "max": self._request.spec.max}
        ranks: dict[str, list[int]] = {}
        for worker in snapshot.get("workers", []):
            if worker["rank"] >= 0:
                ranks.setdefault(worker["pod"], []).append(worker["rank"])
        staying = {
            worker["pod"] for worker in snapshot.get("workers", []) if not worker["leaving"] and not worker["released"]
        }
        return Served(
            spec["min"],
            spec["max"],
            {pod: tuple(members) for pod, members in ranks.items()},
            frozenset(staying),
            snapshot.get("crashes", 0),
        )

    async def _look(self) -> None:
        if self._job.snapshot()["state"] == "loading":
            return  # what the server knows from the store comes first
        wanted, pods = self._wanted(), self._seen_pods()
        present = {pod.uid for pod in pods}
        self._seen |= {pod.uid: pod.name for pod in pods}
        vanished = {uid: name for uid, name in self._seen.items() if uid not in present}
        actions = reconcile(wanted, pods, vanished, frozenset(self._told), self._served(), time.time())
        for action in actions:
            if not isinstance(action, (Create, Delete)):
                await self._tell(action)
        await asyncio.gather(*(self._change(action) for action in actions if isinstance(action, (Create, Delete))))
        await self._report_pending(pods)
        await self._judge_deadline()
        await self._publish(pods)

    # --- acting ------------------------------------------------------------------------------------------------------

    async def _tell(self, action: TellGone | TellDrain | Resize | Fail) -> None:
        """Something that the rendezvous server is to know."""
        if isinstance(action, TellGone):
            await self._command(lambda machine, now: machine.gone(action.pod, action.reason, now))
            self._told.add(action.pod)
            self._reported.pop(action.pod, None)
            await self._say("PodGone", action.reason)
        elif isinstance(action, TellDrain):
            if await self._command(lambda machine, now: machine.drain_host(action.pod, now)):
                await self._say("PodLeaving", f"pod {action.name} leaves the job by plan")
        elif isinstance(action, Resize):
            await self._command(lambda machine, now: machine.resize(action.min, action.max, now))
            await self._say("Scaled", f"{action.min} to {action.max} workers")
        elif not self._stopped_for:
            self._stopped_for = action.reason
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

    async def _change(self, action: Create | Delete) -> None:
        """Something in the cluster. What does not work is tried again at the next look."""
        if isinstance(action, Create) and self._loop.time() < self._no_creation_before:
            return
        try:
            if isinstance(action, Create):
                pod = worker_pod(self._request, action.number, self._uid, self._address)
                self._pods.put(await self._in_thread(lambda: self._create(pod)))
            else:
                logger.info("deleting pod %s: %s", action.pod.name, action.reason)
                uid = action.pod.uid
                await self._in_thread(lambda: self._cluster.delete_pod(action.pod.name, uid))
        except (Conflict, NotFound) as error:
            logger.info("%s: %s", action, error)
        except ClusterError as error:
            logger.warning("%s", error)
            if isinstance(action, Create):
                self._no_creation_before = self._loop.time() + _AFTER_A_REFUSAL
            await self._say("ClusterRefuses", str(error), warning=True, once=True)

    def _create(self, pod: Json) -> Json:
        """Not for a job that is being deleted, which the watch may tell late."""
        if self._cluster.job(self._request.name)["metadata"].get("deletionTimestamp"):
            raise Conflict("the job is being deleted")
        return self._cluster.create(pod)

    async def _say(self, reason: str, message: str, warning: bool = False, once: bool = False) -> None:
        if once and self._reported.get(reason) == message:
            return
        if once:
            self._reported[reason] = message
        await self._in_thread(lambda: self._reporter.say(reason, message, warning))

    async def _report_pending(self, pods: list[Pod]) -> None:
        for pod in pods:
            waits = pod.state == "pending" and pod.trouble and time.time() - pod.created > _PENDING_LONG
            if waits and self._reported.get(pod.uid) != pod.trouble:
                self._reported[pod.uid] = pod.trouble
                await self._say("PodPending", f"pod {pod.name} does not start: {pod.trouble}", warning=True)

    async def _judge_deadline(self) -> None:
        limit = self._request.active_deadline
        if limit is None or self._stopped_for:
            return
        created = pod_of({**self._job_object, "status": {}}).created
        if time.time() > created + limit:
            await self._tell(
                Fail(DEADLINE, f"DeadlineExceeded: the job took longer than {limit} s (--active-deadline)")
            )

    async def _publish(self, pods: list[Pod], result: Result | None = None) -> None:
        status = status_of(self._job.snapshot(), pods, self._job.history.after(""), self._sizes())
        if result is not None:
            status["result"] = msgspec.to_builtins(result)
        if result is not None or self._published.due(status):
            await self._in_thread(lambda: self._published.write(status))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(None, call)

    # --- ending ------------------------------------------------------------------------------------------------------

    async def _end(self) -> int:
        """The result first, so that it outlives whatever happens now; then the pods have time to end by themselves."""
        await self._until_durable()
        failure = self._job.failure
        result = Result(0) if failure is None else Result(failure.code or 1, failure.reason, failure.tail)
        await self._insist({"metadata": {"annotations": {RESULT_ANNOTATION: json.dumps(msgspec.to_builtins(result))}}})
        if failure is None:
            await self._say("Succeeded", "the job is done")
        else:
            await self._say("Failed", f"exit code {result.code}: {result.reason}", warning=True)
        await self._clear_pods()
        await self._publish(self._seen_pods(), result)
        if failure is not None:
            exceeded = result.reason.startswith("DeadlineExceeded")
            await self._insist({"spec": {"activeDeadlineSeconds": 1} if exceeded else {"backoffLimit": 0}})
        return result.code

    async def _until_durable(self) -> None:
        while True:
            try:
                return await self._job.kept()
            except asyncio.TimeoutError:
                logger.warning("job %s is over, and its store does not take that yet", self._request.name)

    async def _clear_pods(self) -> None:
        """Pods that have not begun are of no use any more; those that run have been told, and end."""
        limit = self._loop.time() + self._request.grace_period + _END_SLACK
        asked: set[str] = set()
        while True:
            running = [pod for pod in self._seen_pods() if not pod.is_lost]
            late = self._loop.time() > limit
            for pod in running:
                if pod.uid not in asked and (pod.state == "pending" or late) and not pod.is_leaving:
                    asked.add(pod.uid)
                    await self._change(Delete(pod, "the job is over"))
            if not running or self._loop.time() > limit + self._request.grace_period:
                return
            await self._publish(self._seen_pods())
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), _LOOK_AGAIN)
            except asyncio.TimeoutError:
                pass

    async def _insist(self, patch: Json) -> None:
        """Until the API server has taken it."""
        while True:
            try:
                await self._in_thread(lambda: self._cluster.patch_job(self._request.name, patch))
                return
            except NotFound:
                return
            except ClusterError as error:
                logger.warning("the job's object cannot be changed: %s", error)
                await asyncio.sleep(_LOOK_AGAIN)
