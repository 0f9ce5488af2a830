"""What `submit` puts into the cluster: the controller's Job, its rights, a stable address, and room for what must last.

The Job is made first, with no pod wanted yet, and owns all the rest; so whatever interrupts a submission, deleting the Job
removes everything.
"""

from __future__ import annotations

import secrets
from pathlib import PurePosixPath

from .naming import (
    CONTROLLER,
    JOB_LABEL,
    PORT,
    REQUEST_ANNOTATION,
    ROLE_LABEL,
    TOKEN_FILE,
    controller_account,
    labels,
    status_name,
    store_name,
    token_name,
)
from .pod_parts import Manifest, field, restricted_container, restricted_pod, with_template
from .request import JobRequest, encode
from .worker_pod import owner_reference

_MANY = 100_000  # lost pods of the controller that are no failure of the job; a failed job sets 0
_DEADLINE_SLACK = 120  # seconds that a controller has to end the job in order at its deadline


def manifests(request: JobRequest, namespace: str) -> list[Manifest]:
    """The Job first. `submit` adds an owner reference to the others."""
    parts = [
        controller_job(request),
        token(request),
        service(request),
        *(_config_map(name, request) for name in _kept(request)),
    ]
    if not request.controller_service_account:
        parts += access(request, namespace)
    if request.network_policy:
        parts.append(network_policy(request))
    for part in parts:
        part["metadata"]["namespace"] = namespace
    return parts


def owned(part: Manifest, job: str, uid: str) -> Manifest:
    return {**part, "metadata": {**part["metadata"], "ownerReferences": [owner_reference(job, uid)]}}


def controller_job(request: JobRequest) -> Manifest:
    spec: Manifest = {
        "backoffLimit": _MANY,
        "parallelism": 1,
        "template": _controller_pod(request),
    }
    if request.ttl is not None:
        spec["ttlSecondsAfterFinished"] = request.ttl
    if request.active_deadline is not None:
        spec["activeDeadlineSeconds"] = request.active_deadline + _DEADLINE_SLACK
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**_metadata(request.name, request), "annotations": {REQUEST_ANNOTATION: encode(request)}},
        "spec": spec,
    }


def token(request: JobRequest) -> Manifest:
    """A fresh one. It is the kubelet that reads it, for the pods that mount it: no account needs a right to see it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": _metadata(token_name(request.name), request),
        "stringData": {PurePosixPath(TOKEN_FILE).name: secrets.token_hex(32)},
    }


def service(request: JobRequest) -> Manifest:
    """A restarted controller is reached as soon as it listens: kube-proxy need not first hear that it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request.name, request),
        "spec": {
            "selector": {JOB_LABEL: request.name, ROLE_LABEL: CONTROLLER},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT, "targetPort": PORT}],
        },
    }


def access(request: JobRequest, namespace: str) -> list[Manifest]:
    """The controller's rights: pods of this namespace, and by their names the few objects that are the job's own."""
    name = controller_account(request.name)
    rules = [
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["get", "list", "watch", "create", "delete"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "update"], "resourceNames": _kept(request)},
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "verbs": ["get", "list", "watch", "patch"],
            "resourceNames": [request.name],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(name, request)},
        {"apiVersion": rbac, "kind": "Role", "metadata": _metadata(name, request), "rules": rules},
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": _metadata(name, request),
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def network_policy(request: JobRequest) -> Manifest:
    """Workers and controller of a job talk to each other, and nobody else reaches them."""
    members = {"matchLabels": {JOB_LABEL: request.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(request.name, request),
        "spec": {"podSelector": members, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": members}]}]},
    }


def _kept(request: JobRequest) -> list[str]:
    return [store_name(request.name), status_name(request.name)]


def _config_map(name: str, request: JobRequest) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(name, request), "data": {}}


def _metadata(name: str, request: JobRequest) -> Manifest:
    return {"name": name, "labels": labels(request.name, CONTROLLER)}


def _controller_pod(request: JobRequest) -> Manifest:
    command = ["python3", "-m", "elastic_launch.k8s.controller", "--job", request.name]
    command += ["--token-file", TOKEN_FILE]
    env = [field("ELASTIC_NAMESPACE", "metadata.namespace"), field("ELASTIC_POD_NAME", "metadata.name")]
    container = restricted_container(CONTROLLER, request.controller_image or request.image, request, command, env)
    container["ports"] = [{"name": "rendezvous", "containerPort": PORT}]
    container["readinessProbe"] = {"httpGet": {"path": "/readyz", "port": PORT}, "periodSeconds": 5}
    container["resources"] = {"requests": {"cpu": "50m", "memory": "128Mi"}}
    spec = restricted_pod(request, container)
    spec["serviceAccountName"] = request.controller_service_account or controller_account(request.name)
    spec["terminationGracePeriodSeconds"] = 10
    pod: Manifest = {"metadata": {"labels": labels(request.name, CONTROLLER)}, "spec": spec}
    return with_template(pod, request.controller_pod_template, CONTROLLER)


__all__ = ["access", "controller_job", "manifests", "network_policy", "owned", "service", "token"]
