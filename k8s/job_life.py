"""A job from its controller's start to its end: looks, decides (`reconciling.py`), acts, and looks again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ..rendezvous.server import Server
from ..rendezvous.stores.store import StoreUnavailable
from ..rendezvous.waiting import is_set_within
from .acting import Hands, in_thread
from .cluster import Cluster, Json
from .errors import ClusterError, NotFound, Refused
from .looking_up import result_of
from .naming import RESULT_ANNOTATION, SCALE_ANNOTATION, worker_selector
from .pods import Pod, pod_of
from .published import Published, status_of
from .reconciling import Create, Delete, Fail, Served, Wanted, reconcile
from .request import JobRequest, Result
from .watching import Source, Watcher

logger = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0  # seconds, also when nothing happens
_GLANCE = 0.1  # seconds between two looks at whether the job is over
_PENDING_LONG = 10.0  # seconds after which a pod that does not start is reported
_TROUBLES = {"crash": "WorkerCrashed", "rejected": "WorkerRejected", "refused": "AgentRefused", "absent": "HostSilent"}
"""Kinds of the server's events -> reasons of Kubernetes Events."""
_FAREWELL = 3.0  # seconds for each thing that a controller still does when it is asked to go
_END_SLACK = 15.0  # seconds that pods may take longer to end than their grace period
_DELETED = 143  # exit code of the agents of a job that was deleted
DEADLINE = 124  # exit code of a job that took longer than --active-deadline


class JobLife:
    """`run` returns the job's exit code. It ends with an error only if something here is wrong."""

    def __init__(self, cluster: Cluster, job: Json, request: JobRequest, server: Server, address: str) -> None:
        self._cluster = cluster
        self._request = request
        self._job_object = job
        self._uid = job["metadata"]["uid"]
        self._server = server
        self._job = server.jobs.get_or_create(request.name, request.spec)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._published = Published(cluster, request.name)
        self._seen: dict[str, str] = {}  # id -> name, of all pods ever seen
        self._reported: dict[str, str] = {}  # id -> trouble of a pending pod
        self._told_until = ""  # id of the last of the server's events that was looked at
        self._pods = self._watcher(
            "pods", cluster.core.list_namespaced_pod, label_selector=worker_selector(request.name)
        )
        self._jobs = self._watcher(
            "job", cluster.batch.list_namespaced_job, field_selector=f"metadata.name={request.name}"
        )
        self._hands = Hands(cluster, job, request, self._job, address, self._pods.put)

    async def run(self) -> int:
        self._pods.start()
        self._jobs.start()
        await in_thread(self._pods.listed.wait)
        await in_thread(self._jobs.listed.wait)
        known = result_of(self._job_object)
        if known is not None:  # the controller before this one was killed while it cleared up
            return await self._clear_up(known)
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
            if await is_set_within(self._news, _GLANCE):
                break
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
        actions = reconcile(wanted, pods, vanished, frozenset(self._hands.told), self._served(), time.time())
        for action in actions:
            if not isinstance(action, (Create, Delete)):
                await self._hands.tell(action)
        await asyncio.gather(
            *(self._hands.change(action) for action in actions if isinstance(action, (Create, Delete)))
        )
        await self._report_troubles()
        await self._report_pending(pods)
        await self._judge_deadline()
        await self._publish(pods)

    async def _report_troubles(self) -> None:
        """What the server has noticed, and no pod shows: workers end inside of pods that go on, hosts fall silent."""
        for event in self._job.history.after(self._told_until):
            self._told_until = event["id"]
            if event["kind"] in _TROUBLES:
                await self._hands.say(_TROUBLES[event["kind"]], event["text"], warning=True)

    async def _report_pending(self, pods: list[Pod]) -> None:
        for pod in pods:
            waits = pod.state == "pending" and pod.trouble and time.time() - pod.created > _PENDING_LONG
            if waits and self._reported.get(pod.uid) != pod.trouble:
                self._reported[pod.uid] = pod.trouble
                await self._hands.say("PodPending", f"pod {pod.name} does not start: {pod.trouble}", warning=True)

    async def _judge_deadline(self) -> None:
        limit = self._request.active_deadline
        if limit is None or self._hands.stopped_for:
            return
        created = pod_of({**self._job_object, "status": {}}).created
        if time.time() > created + limit:
            await self._hands.tell(
                Fail(DEADLINE, f"DeadlineExceeded: the job took longer than {limit} s (--active-deadline)")
            )

    async def _publish(self, pods: list[Pod], result: Result | None = None) -> None:
        status = status_of(self._job.snapshot(), pods, self._job.history.after(""), self._sizes())
        if result is not None:
            status["result"] = msgspec.to_builtins(result)
        if result is not None or self._published.due(status):
            await in_thread(lambda: self._published.write(status))

    # --- ending ------------------------------------------------------------------------------------------------------

    async def _end(self) -> int:
        """The result first, so that it outlives whatever happens now; then the pods have time to end by themselves."""
        await self._until_durable()
        await self._report_troubles()
        failure = self._job.failure
        result = Result(0) if failure is None else Result(failure.code or 1, failure.reason, failure.tail)
        await self._hands.insist(
            {"metadata": {"annotations": {RESULT_ANNOTATION: json.dumps(msgspec.to_builtins(result))}}}
        )
        if failure is None:
            await self._hands.say("Succeeded", "the job is done")
        else:
            await self._hands.say("Failed", f"exit code {result.code}: {result.reason}", warning=True)
        return await self._clear_up(result)

    async def _clear_up(self, result: Result) -> int:
        await self._clear_pods()
        await self._publish(self._seen_pods(), result)
        if result.code:
            exceeded = result.reason.startswith("DeadlineExceeded")
            await self._hands.insist({"spec": {"activeDeadlineSeconds": 1} if exceeded else {"backoffLimit": 0}})
        await self._forget()
        return result.code

    async def _forget(self) -> None:
        """The result is on the job's object; what is in an etcd would stay there for ever."""
        try:
            await self._server.jobs.remove(self._job)
        except StoreUnavailable as error:
            logger.warning("job %s stays in its store: %s", self._request.name, error)

    async def leave(self) -> None:
        """For a controller that is asked to go. If that is because the job was deleted, its agents are told, who need not look
        for another controller then, and nothing of it stays in an etcd."""
        if not await self._is_deleted():
            return
        logger.info("job %s was deleted", self._request.name)
        stop = self._job.command(lambda machine, now: machine.stop(_DELETED, "the job was deleted", now))
        stopping = asyncio.ensure_future(stop)  # it may never become durable: the ConfigMap goes with the job
        if not await is_set_within(self._job.deserted, _FAREWELL):
            logger.info("job %s: not all agents have gone within %g s", self._request.name, _FAREWELL)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        if self._request.store:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._forget(), _FAREWELL)

    async def _is_deleted(self) -> bool:
        if self._jobs.listed.is_set() and not self._wanted().exists:
            return True
        try:
            call = in_thread(lambda: self._cluster.job(self._request.name))
            metadata = (await asyncio.wait_for(call, _FAREWELL))["metadata"]
        except (NotFound, Refused):
            return True  # the right to look at it belongs to the job, and goes with it
        except (ClusterError, asyncio.TimeoutError):
            return False
        return bool(metadata["uid"] != self._uid or metadata.get("deletionTimestamp"))

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
                    await self._hands.change(Delete(pod, "the job is over"))
            if not running or self._loop.time() > limit + self._request.grace_period:
                return
            await self._publish(self._seen_pods())
            self._news.clear()
            await is_set_within(self._news, _LOOK_AGAIN)
