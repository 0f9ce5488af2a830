"""The pod of one agent. Its owner is the Job object, not the controller's pod: losing that one removes nothing.

The owner is not named as *controller* of the pod: Kubernetes' job controller would count such a pod as one of its own,
or release it, as its labels do not match.
"""

from __future__ import annotations

from ..rendezvous.host_port import host_port
from .naming import PORT, TOKEN_FILE, WORKER, labels, pod_name
from .pod_parts import Manifest, field, restricted_container, restricted_pod, variables, with_template
from .request import JobRequest

_UNREACHABLE = 30  # seconds until the pods of a silent node are given up, instead of Kubernetes' 300


def worker_pod(request: JobRequest, number: int, owner_uid: str, server: str) -> Manifest:
    """`server` is the address of the rendezvous, `owner_uid` that of the Job object."""
    env = [
        field("ELASTIC_HOST", "metadata.name"),
        field("ELASTIC_POD_UID", "metadata.uid"),
        field("ELASTIC_ADVERTISE_ADDRESS", "status.podIP"),
        *variables(request.env),
    ]
    container = restricted_container(WORKER, request.image, request, _command(request, server), env)
    container["resources"] = _resources(request)
    container["volumeMounts"] += request.volume_mounts
    spec = restricted_pod(request, container)
    spec["volumes"] += request.volumes
    spec |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # the variables of a Service named elastic would pass for the launcher's own
        "terminationGracePeriodSeconds": request.grace_period,
        "tolerations": [*request.tolerations, *_tolerated_for_a_while()],
    }
    if request.node_selector:
        spec["nodeSelector"] = request.node_selector
    if request.priority_class:
        spec["priorityClassName"] = request.priority_class
    if request.service_account:
        spec["serviceAccountName"] = request.service_account
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(request.name, number),
            "labels": labels(request.name, WORKER),
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
            "ownerReferences": [owner_reference(request.name, owner_uid)],
        },
        "spec": spec,
    }
    return with_template(pod, request.pod_template, WORKER)


def owner_reference(job: str, uid: str) -> Manifest:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": False}


def _command(request: JobRequest, server: str) -> list[str]:
    """`min` and `max` as submitted, whatever they have become since: agents must not contradict each other."""
    spec = request.spec
    flags = {
        "--rendezvous": f"http://{host_port(server, PORT)}",
        "--job": request.name,
        "--token-file": TOKEN_FILE,
        "--min": spec.min,
        "--max": spec.max,
        "--nproc-per-node": request.nproc_per_pod,
        "--max-restarts": spec.max_restarts,
        "--min-timeout": spec.min_timeout,
        "--hang-timeout": spec.hang_timeout,
        "--shutdown-timeout": spec.shutdown_timeout,
        "--rendezvous-timeout": 600,
    }
    words = [word for flag, value in flags.items() for word in (flag, str(value))]
    return ["elastic-launch", *words, *request.command]


def _resources(request: JobRequest) -> Manifest:
    wanted: dict[str, str] = {}
    if request.cpu:
        wanted["cpu"] = request.cpu
    if request.memory:
        wanted["memory"] = request.memory
    limits = {name: value for name, value in wanted.items() if name != "cpu"}
    if request.gpu:
        limits["nvidia.com/gpu"] = str(request.gpu)
    return {"requests": wanted, "limits": limits}


def _tolerated_for_a_while() -> list[Manifest]:
    return [
        {
            "key": f"node.kubernetes.io/{trouble}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _UNREACHABLE,
        }
        for trouble in ("not-ready", "unreachable")
    ]
