"""A job as the cluster knows it: its object, its last published status, and how it stands in one word."""

from __future__ import annotations

import json

import msgspec

from ..errors import UsageError
from . import published
from .cluster import Cluster, Json
from .errors import NotFound
from .naming import (
    CONTROLLER,
    JOB_LABEL,
    REQUEST_ANNOTATION,
    RESULT_ANNOTATION,
    ROLE_LABEL,
    status_name,
    worker_selector,
)
from .request import Result


def find_job(cluster: Cluster, name: str) -> Json:
    """UsageError if there is none that `elastic-job` has made."""
    try:
        job = cluster.job(name)
    except NotFound:
        raise UsageError(
            f"there is no job {name!r} in namespace {cluster.namespace}: elastic-job list shows those that there are,"
            " and -n names another namespace"
        ) from None
    if REQUEST_ANNOTATION not in (job["metadata"].get("annotations") or {}):
        raise UsageError(f"{name!r} is a Kubernetes Job that elastic-job has not made: look after it with kubectl")
    return job


def result_of(job: Json) -> Result | None:
    """How it has ended, None while it has not."""
    text = (job["metadata"].get("annotations") or {}).get(RESULT_ANNOTATION)
    if text:
        return msgspec.convert(json.loads(text), Result)
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return Result(1, f"{condition.get('reason')}: {condition.get('message')}")
    return None


def state_of(job: Json, status: Json) -> str:
    if job["metadata"].get("deletionTimestamp"):
        return "deleting"
    result = result_of(job)
    if result is not None:
        return "failed" if result.code else "done"
    return str(status.get("server", {}).get("state") or "submitted")


def last_status(cluster: Cluster, name: str) -> Json:
    try:
        return published.read(cluster.config_map(status_name(name)))
    except NotFound:
        return {}


def worker_pods(cluster: Cluster, name: str) -> list[Json]:
    return cluster.pods(worker_selector(name))


def controller_pods(cluster: Cluster, name: str) -> list[Json]:
    return cluster.pods(f"{JOB_LABEL}={name},{ROLE_LABEL}={CONTROLLER}")
