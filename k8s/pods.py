"""A pod as the controller looks at it: plain data from the API's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .naming import WORKER

Json = dict[str, Any]

_OUTSIDE = {"Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity"}
_GONE_WRONG = {"OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError", "Outofcpu", "Outofmemory"}


@dataclass(frozen=True)
class Pod:
    """`state` is one of "pending", "running", "succeeded", "failed", "unknown". Times are seconds since the epoch.

    `leaving_until` is when its grace period is over, 0 for a pod that is not being deleted. `exit_code` is -1 where none
    is known. `trouble` says in words why it does not run, or how it has ended; `by_force` that it ended from outside:
    evicted, preempted, lost with its node. `starts` counts how often its container was started again, `ended` is when it ended.
    """

    name: str
    uid: str
    state: str
    created: float = 0.0
    leaving_until: float = 0.0
    exit_code: int = -1
    trouble: str = ""
    by_force: bool = False
    node: str = ""
    starts: int = 0
    ended: float = 0.0

    @property
    def is_leaving(self) -> bool:
        return self.leaving_until > 0

    @property
    def has_ended(self) -> bool:
        return self.state in ("succeeded", "failed")

    @property
    def is_lost(self) -> bool:
        """Whether nothing of it runs, or nobody knows."""
        return self.has_ended or self.state == "unknown"

    @property
    def is_live(self) -> bool:
        """Whether it counts towards the pods that the job has."""
        return not self.is_leaving and not self.is_lost


def pod_of(item: Json) -> Pod:
    """A pod of the API."""
    metadata, status = item["metadata"], item.get("status") or {}
    container = _container(status)
    state = (status.get("phase") or "Pending").lower()
    reason = status.get("reason") or ""
    ended = (container.get("state") or {}).get("terminated") or {}
    deletion = metadata.get("deletionTimestamp")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        state=state,
        created=_seconds(metadata.get("creationTimestamp")),
        leaving_until=_seconds(deletion) if deletion else 0.0,
        exit_code=ended.get("exitCode", -1),
        trouble=_trouble(state, status, container, ended, bool(deletion)),
        by_force=bool(deletion or reason in _OUTSIDE | _GONE_WRONG or _was_disrupted(status))
        or (state == "failed" and not ended and not reason),
        node=(item.get("spec") or {}).get("nodeName") or "",
        starts=container.get("restartCount", 0),
        ended=_seconds(ended.get("finishedAt")) if state in ("succeeded", "failed") else 0.0,
    )


def number_of(job: str, name: str) -> int:
    """The number that a worker pod's name ends in, -1 if it is not one of ours."""
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == f"{job}-worker" and number.isdecimal() else -1


def _container(status: Json) -> Json:
    found = status.get("containerStatuses") or []
    return next((known for known in found if known.get("name") == WORKER), found[0] if found else {})


def _was_disrupted(status: Json) -> bool:
    return any(
        condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
        for condition in status.get("conditions") or []
    )


def _trouble(state: str, status: Json, container: Json, ended: Json, deleted: bool) -> str:
    if state == "pending":
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] != "ContainerCreating":
            return _words(waiting["reason"], waiting.get("message"))
        for condition in status.get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return _words(condition.get("reason") or "", condition.get("message"))
        return ""
    if state == "failed":
        if status.get("reason"):
            return _words(status["reason"], status.get("message"))
        if ended:
            code = f"exit code {ended.get('exitCode')}"
            return code if ended.get("reason") in (None, "Error") else f"{ended['reason']}, {code}"
        return f"{'deleted' if deleted else 'failed'}, and its node does not say how it ended"
    return ""


def _words(reason: str, message: str | None) -> str:
    return f"{reason}: {' '.join(message.split())}" if message else reason


def _seconds(time: str | None) -> float:
    if not time:
        return 0.0
    return datetime.strptime(time[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
