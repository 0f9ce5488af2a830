"""`elastic-job submit`: the Job first, which owns all the rest, and its pod last."""

from __future__ import annotations

from ..errors import UsageError
from .cluster import Cluster
from .errors import ClusterError, Conflict
from .manifests import manifests, owned
from .request import JobRequest


def submit(cluster: Cluster, request: JobRequest) -> None:
    """UsageError if there is a job of that name. Whatever else goes wrong, nothing is left behind."""
    job, *parts = manifests(request, cluster.namespace)
    try:
        made = cluster.create({**job, "spec": {**job["spec"], "parallelism": 0}})
    except Conflict:
        raise UsageError(
            f"there is a job {request.name} already: choose another name, or elastic-job delete {request.name} first"
        ) from None
    try:
        for part in parts:
            cluster.create(owned(part, request.name, made["metadata"]["uid"]))
        cluster.patch_job(request.name, {"spec": {"parallelism": 1}})
    except ClusterError:
        cluster.delete_job(request.name)
        raise
