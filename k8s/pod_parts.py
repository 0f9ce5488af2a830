"""What a job's pods have in common: no privilege, no root, a read-only root file system with a /tmp of its own."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from .merging import merge
from .naming import JOB_LABEL, TOKEN_FILE, token_name
from .request import JobRequest

Manifest = dict[str, Any]


def field(name: str, path: str) -> Manifest:
    """A variable from the downward API."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def variables(values: dict[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def restricted_container(
    name: str, image: str, request: JobRequest, command: list[str], env: list[Manifest]
) -> Manifest:
    container: Manifest = {
        "name": name,
        "image": image,
        "command": command,
        "env": [*variables({"HOME": "/tmp", "PYTHONUNBUFFERED": "1"}), *env],
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "token", "mountPath": str(PurePosixPath(TOKEN_FILE).parent), "readOnly": True},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if request.image_pull_policy:
        container["imagePullPolicy"] = request.image_pull_policy
    return container


def restricted_pod(request: JobRequest, container: Manifest) -> Manifest:
    """A pod's spec."""
    return {
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": request.user,
            "runAsGroup": request.user,
            "fsGroup": request.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "token", "secret": {"secretName": token_name(request.name), "defaultMode": 0o440}},
        ],
    }


def with_template(pod: Manifest, template: Manifest, container: str) -> Manifest:
    """`pod` (metadata and spec) with what the user adds; a container without a name is the one called `container`."""
    if not template:
        return pod
    template = dict(template)
    if not {"metadata", "spec"} & template.keys():
        template = {"spec": template}
    spec = dict(template.get("spec") or {})
    if "containers" in spec:
        spec["containers"] = [{"name": container, **added} for added in spec["containers"]]
    template["spec"] = spec
    merged: Manifest = merge(pod, {key: template[key] for key in ("metadata", "spec") if key in template})
    merged["metadata"]["labels"] = {**merged["metadata"].get("labels", {}), **pod["metadata"]["labels"]}
    assert JOB_LABEL in merged["metadata"]["labels"]
    return merged
