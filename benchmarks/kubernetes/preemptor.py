"""A pod that is more important than the job's, and needs the room of one of them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from kubernetes import client

from elastic_launch.k8s.cluster import Cluster
from tests.k8s.checkout_pod import EMPTY_IMAGE


@contextlib.contextmanager
def priority_classes(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The names of a low and of a high one."""
    scheduling = client.SchedulingV1Api(cluster.core.api_client)
    low, high = (f"benchmark-{word}-{uuid.uuid4().hex[:6]}" for word in ("low", "high"))
    for name, value in ((low, 1000), (high, 2000)):
        scheduling.create_priority_class({"metadata": {"name": name}, "value": value})
    try:
        yield low, high
    finally:
        for name in (low, high):
            scheduling.delete_priority_class(name)


class Preemptor:
    def __init__(self, cluster: Cluster, priority_class: str, cpu: str) -> None:
        self._cluster = cluster
        self._class = priority_class
        self._cpu = cpu
        self._name = ""

    def come(self) -> None:
        """Returns at once; the scheduler decides who has to go."""
        self._name = f"preemptor-{uuid.uuid4().hex[:6]}"
        folders = ("/usr", "/bin", "/lib", "/lib64")
        names = [(folder.strip("/"), folder) for folder in folders]
        container = {
            "name": "sleeper",
            "image": EMPTY_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/sleep", "infinity"],
            "resources": {"requests": {"cpu": self._cpu}},
            "volumeMounts": [{"name": name, "mountPath": folder} for name, folder in names],
        }
        spec = {
            "priorityClassName": self._class,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": name, "hostPath": {"path": folder}} for name, folder in names],
        }
        self._cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self._name}, "spec": spec})

    def go(self) -> None:
        self._cluster.delete_pod(self._name)
