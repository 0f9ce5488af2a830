"""`elastic-job scale`, `drain` and `delete`. None of them speaks to the controller: it sees what has changed."""

from __future__ import annotations

from ..errors import UsageError
from .cluster import Cluster
from .errors import NotFound
from .looking_up import find_job, result_of
from .naming import JOB_LABEL, REQUEST_ANNOTATION, ROLE_LABEL, SCALE_ANNOTATION, WORKER
from .request import check_sizes, decode


def scale(cluster: Cluster, name: str, least: int | None, most: int | None) -> int:
    """In pods; None leaves one as it is."""
    if least is None and most is None:
        raise UsageError("give --min, --max or both")
    job = find_job(cluster, name)
    if result_of(job) is not None:
        raise UsageError(f"job {name!r} is over: it is changed no more. Submit another one")
    annotations = job["metadata"]["annotations"]
    request = decode(annotations[REQUEST_ANNOTATION])
    before = annotations.get(SCALE_ANNOTATION, f"{request.min},{request.max}").split(",")
    least = int(before[0]) if least is None else least
    most = int(before[1]) if most is None else most
    check_sizes(least, most)
    cluster.patch_job(name, {"metadata": {"annotations": {SCALE_ANNOTATION: f"{least},{most}"}}})
    print(f"job {name}: {least} to {most} pods")
    return 0


def drain(cluster: Cluster, pod: str) -> int:
    """As `kubectl delete pod`: its workers leave after an agreed step, and it exits 0."""
    try:
        labels = cluster.pod(pod)["metadata"].get("labels") or {}
    except NotFound:
        raise UsageError(
            f"there is no pod {pod!r} in namespace {cluster.namespace}: elastic-job status JOB lists them"
        ) from None
    if labels.get(ROLE_LABEL) != WORKER:
        raise UsageError(f"pod {pod!r} is no worker of an elastic job: elastic-job status JOB lists them")
    cluster.delete_pod(pod)
    print(f"pod {pod} leaves job {labels[JOB_LABEL]}")
    return 0


def delete(cluster: Cluster, name: str) -> int:
    find_job(cluster, name)
    cluster.delete_job(name)
    print(f"job {name} is being deleted")
    return 0
